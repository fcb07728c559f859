"""Tables that a reader can sort by any column."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from refiner.errors import DataError
from refiner.report.markup import paragraph, text
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
    """A cell's text, with a verdict as a badge, and the number to sort by where the text doesn't tell it.

    A verdict without text is shown as its badge alone and sorted from the worst to the best.

    >>> Cell("11 of 12", "exposed", value=11 / 12).key() == 11 / 12
    True
    >>> Cell(verdict="exposed").key() < Cell(verdict="protected").key()
    True
    """

    text: str = ""
    verdict: Verdict | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        check_verdict(self.verdict)

    @property
    def blank(self) -> bool:
        """True if there is nothing to sort by: such cells stand last, however the column is sorted."""
        if self.value is not None:
            return math.isnan(self.value)
        return not self._is_badge and self.text.strip().lower() in _BLANK

    @property
    def _is_badge(self) -> bool:
        return self.verdict is not None and not self.text.strip()

    def key(self) -> float | None:
        """The number that this cell is sorted by; None if it is sorted as text, or blank."""
        if self.value is not None:
            return None if math.isnan(self.value) else self.value
        if self.verdict is not None and self._is_badge:
            return VERDICTS.index(self.verdict)
        return number_of(self.text)


@dataclass(frozen=True)
class Table:
    """A table of cells, each a text or a `Cell`; the first column names the rows.

    >>> Table("Leaks", ["defence", "PSNR"], [["none", "32.6 ± 0.4 dB"], ["Refiner", "12.7 ± 0.2 dB"]]).title
    'Leaks'
    """

    kind: ClassVar[str] = "Table"
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise DataError(
                    f"table '{self.title}', row {number}: {len(row)} cells, expected {len(self.columns)}"
                )

    def html(self, anchor: str) -> str:
        """The table in a box of its own, which scrolls where the page is narrow."""
        rows = [[Cell(cell) if isinstance(cell, str) else cell for cell in row] for row in self.rows]
        kinds = [_kind([row[column] for row in rows], column) for column in range(len(self.columns))]
        head = "".join(
            f'<th scope="col"{_mark(kind)} data-sort="{kind}">{text(name)}</th>'
            for name, kind in zip(self.columns, kinds, strict=True)
        )
        body = "".join(
            "<tr>" + "".join(_cell(cell, kinds[n], n == 0) for n, cell in enumerate(row)) + "</tr>\n"
            for row in rows
        )
        return (
            f'<div class="scroll" role="region" aria-label="{text(self.title)}" tabindex="0">\n'
            f'<table class="sortable">\n<thead><tr>{head}</tr></thead>\n'
            f"<tbody>\n{body}</tbody>\n</table>\n</div>\n{paragraph(self.note, 'note')}"
        )


def number_of(cell: str) -> float | None:
    """The value that a cell states, without sign of inequality, interval and unit; None if it is text.

    >>> [number_of(cell) for cell in ("12.5 ± 0.3 dB", "−3 %", "< 1,234", "1e-3", "0.9 [0.8, 1.0]", "good")]
    [12.5, -3.0, 1234.0, 0.001, 0.9, None]
    """
    found = _NUMBER.fullmatch(cell.strip())
    if found is None:
        return None
    size = re.sub(r"[,\u00a0\u2009\u202f ]", "", found["size"]).replace("−", "-").replace("∞", "inf")
    return -float(size) if found["sign"] in ("-", "−") else float(size)


def _kind(cells: Sequence[Cell], column: int) -> str:
    """`number` is set to the right, `order` is not; both are sorted by value, `text` by its letters."""
    filled = [cell for cell in cells if not cell.blank]
    if not filled or any(cell.key() is None for cell in filled):
        return "text"
    # The first column names the rows: even numbers are names there.
    return "number" if column and any(cell.text.strip() for cell in filled) else "order"


def _mark(kind: str) -> str:
    return ' class="number"' if kind == "number" else ""


def _cell(cell: Cell, kind: str, names_row: bool) -> str:
    key = None if kind == "text" else cell.key()
    value = "" if key is None else f' data-value="{str(key).replace("inf", "Infinity")}"'
    blank = " data-blank" if cell.blank else ""
    shown = text(cell.text)
    if cell.verdict is not None:
        shown = f"{shown} {badge(cell.verdict)}" if shown else badge(cell.verdict)
    if names_row:
        return f'<th scope="row"{value}{blank}>{shown}</th>'
    return f"<td{_mark(kind)}{value}{blank}>{shown}</td>"
