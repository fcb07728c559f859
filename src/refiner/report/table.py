"""Tables that a reader can sort by any column."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from refiner.errors import DataError
from refiner.report.markup import escape, paragraph
from refiner.report.verdict import VERDICTS, Verdict, badge, check_verdict

_DIGITS = r"(?:\d{1,3}(?:[,\u00a0\u2009\u202f ]\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_UNIT = r"(?: ?(?:%|[A-Za-zµ/]{1,4}))?"
_NUMBER = re.compile(
    rf"[<>≤≥≈~]? ?(?P<sign>[+−-]?)(?P<size>(?:{_DIGITS})(?:e[+−-]?\d+)?|∞){_UNIT}"
    rf"(?: ?± ?(?:{_DIGITS}){_UNIT})?(?: ?[(\[][^()\[\]]*[)\]])?{_UNIT}"
)
_BLANK = ("", "-", "–", "—", "n/a", "nan")


@dataclass(frozen=True)
class Cell:
    """A table cell with a verdict badge, or with a sort value that its text does not state.

    Args:
        text: What the cell shows.
        verdict: Shown as a badge beside the text. A verdict without text is shown as its badge alone and
            sorted from the worst to the best.
        value: The number to sort by; without it the number is read from the text.

    Raises:
        SettingError: if `verdict` is none of `VERDICTS`.

    >>> Cell("11 of 12", "visible", value=11 / 12).sort_key() == 11 / 12
    True
    >>> Cell(verdict="visible").sort_key() < Cell(verdict="neither").sort_key()
    True
    """

    text: str = ""
    verdict: Verdict | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        check_verdict(self.verdict)

    @property
    def blank(self) -> bool:
        """True if there is nothing to sort by: such cells come last in either direction."""
        if self.value is not None:
            return math.isnan(self.value)
        return not self._is_badge and self.text.strip().lower() in _BLANK

    @property
    def _is_badge(self) -> bool:
        return self.verdict is not None and not self.text.strip()

    def sort_key(self) -> float | None:
        """Return the number to sort this cell by; None if it is sorted as text, or blank."""
        if self.value is not None:
            return None if math.isnan(self.value) else self.value
        if self.verdict is not None and self._is_badge:
            return VERDICTS.index(self.verdict)
        return parse_number(self.text)


@dataclass(frozen=True)
class Table:
    """A table that the reader can sort by any column.

    Args:
        title: Heading of the section.
        columns: The column headings; the first column names the rows.
        rows: The rows, each with one text or `Cell` per column.
        note: Text below the table; may be empty.
        definitions: (term, meaning), a list below the note that explains the columns.

    Raises:
        DataError: if a row has another number of cells than there are columns.

    >>> Table("Leaks", ["defence", "PSNR"], [["none", "32.6 ± 0.4 dB"], ["Refiner", "12.7 ± 0.2 dB"]]).title
    'Leaks'
    """

    caption_label: ClassVar[str] = "Table"
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    note: str = ""
    definitions: Sequence[tuple[str, str]] = ()

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise DataError(
                    f"table '{self.title}', row {number}: {len(row)} cells, expected {len(self.columns)}",
                    field="rows",
                    value=len(row),
                    expected=f"{len(self.columns)} cells",
                )

    def html(self, anchor: str) -> str:
        """Return the table in a box that scrolls on its own where the page is narrow."""
        rows = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in self.rows]
        orders = [_sort_order([row[column] for row in rows], column) for column in range(len(self.columns))]
        head = "".join(
            f'<th scope="col"{_css_class(order)} data-sort="{order}">{escape(name)}</th>'
            for name, order in zip(self.columns, orders, strict=True)
        )
        body = "".join(
            "<tr>" + "".join(_cell(cell, orders[n], n == 0) for n, cell in enumerate(row)) + "</tr>\n"
            for row in rows
        )
        return (
            f'<div class="scroll" role="region" aria-label="{escape(self.title)}" tabindex="0">\n'
            f'<table class="sortable">\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}</tbody>\n</table>\n</div>\n{paragraph(self.note, 'note')}"
            f"{_definition_list(self.definitions)}"
        )


def parse_number(cell: str) -> float | None:
    """Return the number that a cell states, without relation sign, interval and unit; None for text.

    >>> [parse_number(cell) for cell in ("12.5 ± 0.3 dB", "−3 %", "< 1,234", "1e-3", "0.9 [0.8, 1]", "good")]
    [12.5, -3.0, 1234.0, 0.001, 0.9, None]
    """
    match = _NUMBER.fullmatch(cell.strip())
    if match is None:
        return None
    size = re.sub(r"[,\u00a0\u2009\u202f ]", "", match["size"]).replace("−", "-").replace("∞", "inf")
    return -float(size) if match["sign"] in ("-", "−") else float(size)


def _definition_list(definitions: Sequence[tuple[str, str]]) -> str:
    if not definitions:
        return ""
    items = "".join(
        f"<div><dt>{escape(term)}</dt><dd>{escape(meaning)}</dd></div>\n" for term, meaning in definitions
    )
    return f'<dl class="definitions">\n{items}</dl>\n'


def _sort_order(cells: Sequence[Cell], column: int) -> str:
    """Return how a column is sorted: `number` (right-aligned), `order` (left-aligned) or `text`."""
    filled = [cell for cell in cells if not cell.blank]
    if not filled or any(cell.sort_key() is None for cell in filled):
        return "text"
    # The first column names the rows: even numbers are names there.
    return "number" if column and any(cell.text.strip() for cell in filled) else "order"


def _css_class(order: str) -> str:
    return ' class="number"' if order == "number" else ""


def _cell(cell: Cell, order: str, names_row: bool) -> str:
    key = None if order == "text" else cell.sort_key()
    value = "" if key is None else f' data-value="{str(key).replace("inf", "Infinity")}"'
    blank = " data-blank" if cell.blank else ""
    content = escape(cell.text)
    if cell.verdict is not None:
        content = f"{content} {badge(cell.verdict)}" if content else badge(cell.verdict)
    if names_row:
        return f'<th scope="row"{value}{blank}>{content}</th>'
    return f"<td{_css_class(order)}{value}{blank}>{content}</td>"
