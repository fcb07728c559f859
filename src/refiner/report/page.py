"""One self-contained HTML page: no script, no request, pictures inlined, light and dark, ready to print."""

import base64
import html
import io
import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from PIL import Image

from refiner._version import __version__
from refiner.files import write_whole
from refiner.report.records import Gallery, GalleryRow, Page, Picture, Table

__all__ = ["Gallery", "GalleryRow", "Page", "Picture", "Table", "render_page", "write_page"]

_PER_PLATE = 5  # as many as a phone shows side by side
_SHORT = 14  # a fact up to this long is set in large type
_NUMBER = re.compile(r"[<>≤≥≈~+−-]? ?\d[\d,.  ]*(e[+−-]?\d+)?( ?± ?[\d.]+)?( ?(%|[A-Za-zµ/]{1,4}))?")
_BLANK = ("", "-", "–", "—", "n/a")
# The browser itself then refuses scripts and every request.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


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
    style = (files("refiner.report") / "page.css").read_text(encoding="utf-8")
    galleries = [_gallery(gallery, f"Figure {n}") for n, gallery in enumerate(page.galleries, start=1)]
    tables = [_table(table, f"Table {n}") for n, table in enumerate(page.tables, start=1)]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="refiner {_text(__version__)}">
<title>{_text(page.title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<header>
<h1>{_text(page.title)}</h1>
{_paragraph(page.lead, "lead")}{_facts(page.facts)}</header>
<main>
{"".join(galleries)}{"".join(tables)}</main>
<footer>
<p>Made with refiner {_text(__version__)}. This page stands alone: it asks no network for anything.</p>
</footer>
</body>
</html>
"""


def _text(text: str) -> str:
    """Escaped for elements and attributes alike; what HTML can't hold becomes a replacement character."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    clean = "".join("�" if (c < " " and c not in "\t\n") or "\x7f" <= c <= "\x9f" else c for c in whole)
    return html.escape(clean, quote=True)


def _paragraph(text: str, kind: str) -> str:
    return f'<p class="{kind}">{_text(text)}</p>\n' if text.strip() else ""


def _facts(facts: Sequence[tuple[str, str]]) -> str:
    if not facts:
        return ""
    items = "".join(
        f'<div class="{"short" if len(value) <= _SHORT else "wide"}">'
        f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>\n"
        for name, value in facts
    )
    return f'<dl class="facts">\n{items}</dl>\n'


def _heading(kind: str, title: str) -> str:
    return f'<h2><span class="kind">{kind}</span> {_text(title)}</h2>\n'


def _gallery(gallery: Gallery, kind: str) -> str:
    longest = max((len(row.images) for row in gallery.rows), default=0)
    # As even as possible: eight pictures are four and four, not five and three.
    plates = -(-longest // _PER_PLATE)
    width = -(-longest // plates) if plates else 0
    body = "".join(
        '<div class="plate">\n'
        + "".join(_row(row, start, width) for row in gallery.rows if row.images[start : start + width])
        + "</div>\n"
        for start in range(0, longest, max(width, 1))
    )
    single = " single" if plates == 1 else ""
    return (
        f"<section>\n{_heading(kind, gallery.title)}{_paragraph(gallery.note, 'note')}"
        f'<div class="plates{single}" style="--columns:{width}">\n{body}</div>\n</section>\n'
    )


def _row(row: GalleryRow, start: int, width: int) -> str:
    pictures = "".join(_picture(picture) for picture in row.images[start : start + width])
    label = _text(row.label)
    return (
        f'<div role="group" aria-label="{label}">\n<p class="label">{label}</p>\n'
        f'<div class="strip">\n{pictures}</div>\n</div>\n'
    )


def _picture(picture: Picture) -> str:
    height, width = picture.pixels.shape[:2]
    buffer = io.BytesIO()
    Image.fromarray(picture.pixels).save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    caption = f"<figcaption>{_text(picture.caption)}</figcaption>" if picture.caption.strip() else ""
    return (
        f'<figure><img src="data:image/png;base64,{data}" width="{width}" height="{height}" '
        f'alt="{_text(picture.alt)}">{caption}</figure>\n'
    )


def _table(table: Table, kind: str) -> str:
    numeric = [_is_numeric([row[column] for row in table.rows]) for column in range(len(table.columns))]
    if numeric:
        numeric[0] = False  # the first column names the rows
    marks = [' class="number"' if right else "" for right in numeric]
    head = "".join(
        f'<th scope="col"{mark}>{_text(name)}</th>' for name, mark in zip(table.columns, marks, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<th scope="row">{_text(cell)}</th>' if column == 0 else f"<td{marks[column]}>{_text(cell)}</td>"
            for column, cell in enumerate(row)
        )
        + "</tr>\n"
        for row in table.rows
    )
    name = _text(table.title)
    return (
        f"<section>\n{_heading(kind, table.title)}"
        f'<div class="scroll" role="region" aria-label="{name}" tabindex="0">\n<table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n</table>\n</div>\n"
        f"{_paragraph(table.note, 'note')}</section>\n"
    )


def _is_numeric(cells: Sequence[str]) -> bool:
    """True if every cell is a number or blank, and at least one is a number."""
    filled = [cell.strip() for cell in cells if cell.strip() not in _BLANK]
    return bool(filled) and all(_NUMBER.fullmatch(cell) for cell in filled)
