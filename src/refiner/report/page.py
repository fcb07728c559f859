"""One self-contained HTML page: no request, images inlined, light and dark, ready to print."""

import base64
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Protocol

from refiner._version import __version__
from refiner.errors import DataError
from refiner.files import write_whole
from refiner.report.markup import paragraph, text
from refiner.report.verdict import Verdict, badge, check_verdict, sprite

_SHORT = 14  # a fact up to this long is set in large type
_STYLES = ("page.css", "comparison.css", "gallery.css", "table.css", "distribution.css", "settings.css")
_SCRIPTS = ("table.js", "gallery.js", "settings.js")


class Part(Protocol):
    """What a page is made of: a title, what it is numbered as (or nothing), and its HTML under the title."""

    kind: ClassVar[str]

    @property
    def title(self) -> str: ...

    def html(self, anchor: str) -> str:
        """The part without its title; `anchor` begins every id in it."""
        ...


@dataclass(frozen=True)
class Page:
    """A whole page: the main result in a sentence, facts as (name, value), then the parts, in their order."""

    title: str
    summary: str
    facts: Sequence[tuple[str, str]] = ()
    parts: Sequence[Part] = ()
    note: str = ""
    """what a reader must know to judge the summary"""
    verdict: Verdict | None = None
    made: datetime | None = None
    """when it was found, with its time zone"""

    def __post_init__(self) -> None:
        check_verdict(self.verdict)
        if self.made is not None and self.made.tzinfo is None:
            raise DataError(f"made: {self.made.isoformat()}, expected a time with its time zone")


def write_page(path: str | os.PathLike[str], page: Page) -> Path:
    """Write the page as one HTML file, whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_page(Path(folder) / "index.html", Page("Refined", "Ten images.")).name
    'index.html'
    """
    return write_whole(path, render_page(page).encode("utf-8"))


def render_page(page: Page) -> str:
    """The page as HTML; the same records give the same bytes.

    >>> "<h1>a &lt; b</h1>" in render_page(Page("a < b", "Everything is escaped."))
    True
    """
    style, script = _read(_STYLES), _read(_SCRIPTS)
    sections, contents = _sections(page.parts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="refiner {text(__version__)}">
<title>{text(page.title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
{sprite()}<header>
{_byline(page.made)}<h1>{text(page.title)}</h1>
{_summary(page)}{paragraph(page.note, "note")}{_facts(page.facts)}{contents}</header>
<main>
{sections}</main>
<footer>
<p>Made with refiner {text(__version__)}. This page stands alone: it asks no network for anything.</p>
</footer>
<script>{script}</script>
</body>
</html>
"""


def _read(names: Sequence[str]) -> str:
    folder = files("refiner.report")
    return "".join((folder / name).read_text(encoding="utf-8") for name in names)


def _policy(script: str) -> str:
    """The browser itself then refuses every request, and every script but ours."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _byline(made: datetime | None) -> str:
    version = f"refiner {text(__version__)}"
    if made is None:
        return f'<p class="byline">{version}</p>\n'
    moment = made.astimezone(UTC).replace(microsecond=0)
    when = f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M} UTC</time>'
    return f'<p class="byline">{when} <span aria-hidden="true">·</span> {version}</p>\n'


def _summary(page: Page) -> str:
    if page.verdict is None:
        return paragraph(page.summary, "summary")
    return f'<p class="summary {page.verdict}">{badge(page.verdict)} {text(page.summary)}</p>\n'


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    if not facts:
        return ""
    items = "".join(
        f'<div class="{"short" if len(value) <= _SHORT else "wide"}">'
        f"<dt>{text(name)}</dt><dd>{text(value)}</dd></div>\n"
        for name, value in facts
    )
    return f'<dl class="facts">\n{items}</dl>\n'


def _sections(parts: Sequence[Part]) -> tuple[str, str]:
    """The parts, each kind numbered on its own, and a list of links to them if they are many."""
    counts: dict[str, int] = {}
    sections = links = ""
    for position, part in enumerate(parts, start=1):
        anchor, label = f"part-{position}", ""
        if part.kind:
            counts[part.kind] = counts.get(part.kind, 0) + 1
            label = f'<span class="kind">{part.kind} {counts[part.kind]}</span> '
        title, name = text(part.title), type(part).__name__.lower()
        sections += (
            f'<section id="{anchor}" class="{name}" aria-labelledby="{anchor}-title">\n'
            f'<h2 id="{anchor}-title">{label}{title}</h2>\n{part.html(anchor)}</section>\n'
        )
        links += f'<li><a href="#{anchor}">{label}{title}</a></li>\n'
    if len(parts) < 3:
        return sections, ""
    return sections, f'<nav class="contents" aria-label="Contents">\n<ol>\n{links}</ol>\n</nav>\n'
