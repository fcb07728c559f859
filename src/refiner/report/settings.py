"""All settings and seeds of a run, to read and to copy."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from refiner.report.markup import counted, paragraph, text


@dataclass(frozen=True)
class Settings:
    """Settings by name, closed until asked for; a mapping in them is a section. Copied as JSON.

    >>> Settings({"seed": 0, "attack": {"iterations": 300}}).as_json()
    '{\\n  "seed": 0,\\n  "attack": {\\n    "iterations": 300\\n  }\\n}'
    """

    kind: ClassVar[str] = ""
    values: Mapping[str, object]
    title: str = "Settings and seeds"
    note: str = ""

    def as_json(self) -> str:
        """All of them as JSON; what JSON doesn't know is written as text."""
        return json.dumps(self.values, indent=2, ensure_ascii=False, default=_plain)

    def html(self, anchor: str) -> str:
        """A definition list for every section, in one element that opens."""
        loose = {name: value for name, value in self.values.items() if not isinstance(value, Mapping)}
        body = _list(loose) if loose else ""
        for name, value in self.values.items():
            if isinstance(value, Mapping):
                body += f"<h3>{text(name)}</h3>\n{_list(value)}"
        count = counted(sum(1 for _ in _flat(self.values, "")), "value")
        return (
            f"{paragraph(self.note, 'note')}"
            f"<details><summary>{count}</summary>\n"
            f'<div class="copy" data-copy="{text(self.as_json())}" hidden>'
            '<button type="button">Copy as JSON</button> <span role="status"></span></div>\n'
            f"{body}</details>\n"
        )


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _flat(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _list(values: Mapping[str, object]) -> str:
    rows = "".join(
        f"<div><dt>{text(name)}</dt><dd>{text(_shown(value))}</dd></div>\n"
        for name, value in _flat(values, "")
    )
    return f"<dl>\n{rows}</dl>\n"


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_plain)
