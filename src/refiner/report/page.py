"""One self-contained HTML page: no network requests, images embedded, light and dark, printable."""

import base64
import hashlib
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import ClassVar, Protocol

from refiner._version import __version__
from refiner.errors import DataError
from refiner.files import write_atomically
from refiner.report.markup import escape, paragraph
from refiner.report.verdict import Verdict, badge, check_verdict, css_class, icon_sprite

_LARGE_TYPE = 14  # a fact of at most so many characters is set in large type
_STYLES = (
    "page.css",
    "folding.css",
    "comparison.css",
    "gallery.css",
    "table.css",
    "grid.css",
    "distribution.css",
    "plot.css",
    "settings_table.css",
)
_SCRIPTS = ("table.js", "gallery.js", "settings_table.js", "folding.js")


class Section(Protocol):
    """A section of a page: any class with a title, a caption label and an `html` method."""

    caption_label: ClassVar[str]
    """What sections of this class are numbered as ("Figure", "Table"); empty for no number."""

    @property
    def title(self) -> str: ...

    def html(self, anchor: str) -> str:
        """Return the section's HTML without its heading; every id in it must begin with `anchor`."""
        ...


@dataclass(frozen=True)
class Page:
    """The contents of a page.

    Args:
        title: Main heading.
        summary: The main result in a few sentences.
        answer: The main result in one sentence, in bold before the summary; may be empty.
        facts: Key figures, as (name, value).
        sections: The sections, in their order.
        folded: Sections after them that are closed until the reader opens them, or prints the page.
        note: What a reader must know to judge the summary, one or more paragraphs; may be empty. With
            `folded` sections it stands before them, together with the facts, so that the first section is on
            the first screen, under the heading `note_title`.
        verdict: Shown as a badge before the summary.
        verdict_text: The words of the badge, if not those of the verdict.
        made: When the results were computed, with a time zone.
        note_title: Heading of the note and the facts where they stand before folded sections.

    Raises:
        SettingError: if `verdict` is none of `VERDICTS`.
        DataError: if `made` has no time zone.
    """

    title: str
    summary: str
    facts: Sequence[tuple[str, str]] = ()
    sections: Sequence[Section] = ()
    note: str | Sequence[str] = ""
    verdict: Verdict | None = None
    made: datetime | None = None
    folded: Sequence[Section] = ()
    answer: str = ""
    note_title: str = "How to judge these results"
    verdict_text: str = ""

    def __post_init__(self) -> None:
        check_verdict(self.verdict)
        if self.made is not None and self.made.tzinfo is None:
            raise DataError(field="made", value=self.made.isoformat(), expected="a time with a time zone")


def write_page(path: str | os.PathLike[str], page: Page) -> Path:
    """Write a page as one HTML file, completely or not at all.

    Args:
        path: Where to write it; missing folders are created.
        page: The contents.

    Returns:
        The path.

    Raises:
        DataError: if the file cannot be written; an existing file stays as it was.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_page(Path(folder) / "index.html", Page("Refined", "Ten images.")).name
    'index.html'
    """
    return write_atomically(path, render_page(page).encode("utf-8"), private=True)


def render_page(page: Page) -> str:
    """Return a page as HTML.

    Args:
        page: The contents; all text in it is escaped.

    Returns:
        A complete HTML document; equal pages give equal documents.

    >>> "<h1>a &lt; b</h1>" in render_page(Page("a < b", "All text is escaped."))
    True
    """
    style, script = _read(_STYLES), _read(_SCRIPTS)
    sections, folded, contents = _render_sections(page)
    background = f"{_notes(page.note)}{_facts(page.facts)}"
    if folded and background:
        sections += (
            '<section class="background" aria-labelledby="background-title">\n'
            f'<h2 id="background-title">{escape(page.note_title)}</h2>\n{background}</section>\n'
        )
        background = ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="refiner {escape(__version__)}">
<title>{escape(page.title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body{' class="answer-first"' if folded else ""}>
{icon_sprite()}<header>
{_byline(page.made)}<h1>{escape(page.title)}</h1>
{_summary(page)}{background}{contents}</header>
<main>
{sections}{folded}</main>
<footer>
<p>Made with refiner {escape(__version__)}. This page is self-contained: it makes no network requests.</p>
</footer>
<script>{script}</script>
</body>
</html>
"""


def _read(names: Sequence[str]) -> str:
    folder = files("refiner.report")
    return "".join((folder / name).read_text(encoding="utf-8") for name in names)


def _policy(script: str) -> str:
    """Return a policy by which the browser blocks every request and every script but the page's own."""
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _byline(made: datetime | None) -> str:
    version = f"refiner {escape(__version__)}"
    if made is None:
        return f'<p class="byline">{version}</p>\n'
    moment = made.astimezone(UTC).replace(microsecond=0)
    when = f'<time datetime="{moment.isoformat()}">{moment:%Y-%m-%d %H:%M} UTC</time>'
    return f'<p class="byline">{when} <span aria-hidden="true">·</span> {version}</p>\n'


def _summary(page: Page) -> str:
    if page.verdict is None and not page.answer:
        return paragraph(page.summary, "summary")
    style = "" if page.verdict is None else f" {css_class(page.verdict)}"
    parts = [
        "" if page.verdict is None else badge(page.verdict, long=True, text=page.verdict_text),
        f"<strong>{escape(page.answer)}</strong>" if page.answer else "",
        escape(page.summary),
    ]
    return f'<p class="summary{style}">{" ".join(filter(None, parts))}</p>\n'


def _notes(note: str | Sequence[str]) -> str:
    return "".join(paragraph(text, "note") for text in ([note] if isinstance(note, str) else note))


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    if not facts:
        return ""
    items = "".join(
        f'<div class="{"short" if len(value) <= _LARGE_TYPE else "wide"}">'
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>\n"
        for name, value in facts
    )
    return f'<dl class="facts">\n{items}</dl>\n'


def _render_sections(page: Page) -> tuple[str, str, str]:
    """Return open sections, folded ones, and a table of contents if there are three or more.

    They are numbered by caption label.
    """
    counts: dict[str, int] = {}
    bodies, links = {False: "", True: ""}, ""
    every = [*((section, False) for section in page.sections), *((section, True) for section in page.folded)]
    for position, (section, folded) in enumerate(every, start=1):
        anchor, label = f"section-{position}", ""
        if section.caption_label:
            counts[section.caption_label] = counts.get(section.caption_label, 0) + 1
            label = f'<span class="kind">{section.caption_label} {counts[section.caption_label]}</span> '
        title = escape(section.title)
        heading, content = f'<h2 id="{anchor}-title">{label}{title}</h2>', section.html(anchor)
        if folded:
            content = f'<details class="folded"><summary>{heading}</summary>\n{content}</details>\n'
        else:
            content = f"{heading}\n{content}"
        bodies[folded] += (
            f'<section id="{anchor}" class="{_css_class(section)}" aria-labelledby="{anchor}-title">\n'
            f"{content}</section>\n"
        )
        links += f'<li><a href="#{anchor}">{label}{title}</a></li>\n'
    contents = f'<nav class="contents" aria-label="Contents">\n<ol>\n{links}</ol>\n</nav>\n'
    return bodies[False], bodies[True], contents if len(every) > 2 else ""


def _css_class(section: Section) -> str:
    """Return the section's class in CSS: `SettingsTable` is `settings-table`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "-", type(section).__name__).lower()
