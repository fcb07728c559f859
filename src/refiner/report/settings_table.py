"""All settings and seeds of a run, to read and to copy."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from refiner.report.markup import count_of, escape, paragraph


@dataclass(frozen=True)
class SettingsTable:
    """Settings by name, collapsed until the reader opens them; they can be copied as JSON.

    Args:
        values: The settings; a value that is itself a mapping becomes a section of its own.
        title: Heading of the section.
        note: Text below the heading; may be empty.
        collapsed: Whether they are shown only when the reader opens them; not needed in a folded section.

    >>> SettingsTable({"seed": 0, "attack": {"iterations": 300}}).as_json()
    '{\\n  "seed": 0,\\n  "attack": {\\n    "iterations": 300\\n  }\\n}'
    """

    caption_label: ClassVar[str] = ""
    values: Mapping[str, object]
    title: str = "Settings and seeds"
    note: str = ""
    collapsed: bool = True

    def as_json(self) -> str:
        """Return all settings as JSON; values that JSON cannot represent are written as text."""
        return json.dumps(self.values, indent=2, ensure_ascii=False, default=_json_value)

    def html(self, anchor: str) -> str:
        """Return a definition list for every section, collapsible unless `collapsed` is false."""
        top_level = {name: value for name, value in self.values.items() if not isinstance(value, Mapping)}
        body = _definition_list(top_level) if top_level else ""
        for name, value in self.values.items():
            if isinstance(value, Mapping):
                body += f"<h3>{escape(name)}</h3>\n{_definition_list(value)}"
        count = count_of(sum(1 for _ in _flatten(self.values, "")), "setting")
        start, end = "<div>", "</div>"
        if self.collapsed:
            start, end = f"<details><summary>Show {count}</summary>", "</details>"
        return (
            f"{paragraph(self.note, 'note')}{start}\n"
            f'<div class="copy" data-copy="{escape(self.as_json())}" hidden>'
            '<button type="button">Copy as JSON</button> <span role="status"></span></div>\n'
            f"{body}{end}\n"
        )


def _json_value(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else str(value)


def _flatten(values: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _definition_list(values: Mapping[str, object]) -> str:
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(_value_text(value))}</dd></div>\n"
        for name, value in _flatten(values, "")
    )
    return f"<dl>\n{rows}</dl>\n"


def _value_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=_json_value)
