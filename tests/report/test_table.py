"""Tests of sortable tables."""

import math
import re

import pytest

from refiner.errors import DataError, SettingError
from refiner.report import Cell, Table
from refiner.report.table import parse_number


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("12", 12.0),
        (" 12.70 ", 12.7),
        ("12.7 ± 0.4", 12.7),
        ("12.7 ± 0.4 dB", 12.7),
        ("12.7 dB ± 0.4 dB", 12.7),
        ("0.91 [0.88, 0.93]", 0.91),
        ("0.91 (0.88–0.93)", 0.91),
        ("-3 %", -3.0),
        ("−3 %", -3.0),
        ("+3%", 3.0),
        ("1,234,567", 1234567.0),
        ("1 234.5", 1234.5),
        ("1e-3", 0.001),
        ("2.5e−4", 0.00025),
        ("< 0.001", 0.001),
        ("≥5 ms", 5.0),
        (".5", 0.5),
        ("∞", math.inf),
        ("−∞ dB", -math.inf),
    ],
)
def test_parse_number_reads_numbers_with_units_and_intervals(cell: str, value: float) -> None:
    assert parse_number(cell) == value


@pytest.mark.parametrize(
    "cell", ["", "–", "good", "12 of 20", "resnet18", "1,23", "1.2.3", "3 apples!", "± 4"]
)
def test_parse_number_returns_none_for_text(cell: str) -> None:
    assert parse_number(cell) is None


def heads(table: Table) -> list[str]:
    return re.findall(r'<th scope="col"[^>]* data-sort="(\w+)"', table.html("a"))


def test_each_column_has_a_sort_order() -> None:
    rows: list[list[str | Cell]] = [
        ["1", "12.5 dB", "good", "–", Cell(verdict="visible"), Cell("1 of 8", value=0.125)],
        ["2", "−3 %", "4", "1e-3", Cell(verdict="neither"), Cell("", value=math.nan)],
        ["10", "1,234", "", "0.1 ± 0.02", "n/a", Cell("8 of 8", "visible", value=1.0)],
    ]
    table = Table("T", ["id", "psnr", "word", "loss", "verdict", "share"], rows)
    assert heads(table) == ["order", "number", "text", "number", "order", "number"]
    html = table.html("a")
    assert re.findall(r'<th scope="row" data-value="([^"]*)"', html) == ["1.0", "2.0", "10.0"]
    assert html.count(" data-blank") == 4
    first = html.split("<tr>")[2]
    assert re.findall(r'data-value="([^"]*)"', first) == ["1.0", "12.5", "0", "0.125"]


def test_infinity_is_written_as_in_javascript() -> None:
    html = Table("T", ["a", "b"], [["x", "∞"], ["y", "−∞"], ["z", "1"]]).html("a")
    assert re.findall(r'data-value="([^"]*)"', html) == ["Infinity", "-Infinity", "1.0"]


def test_badge_is_shown_beside_the_text_or_alone() -> None:
    html = Table("T", ["a", "b", "c"], [["x", Cell("3 dB", "visible"), Cell(verdict="neither")]]).html("a")
    assert re.search(r'>3 dB <span class="badge visible">.*visible</span></td>', html)
    assert re.search(r'<td data-value="2"><span class="badge neither">', html)


def test_rows_of_wrong_length_and_unknown_verdicts_are_rejected() -> None:
    with pytest.raises(DataError, match="table 'T', row 2: 1 cells, expected 2"):
        Table("T", ["a", "b"], [["1", "2"], ["3"]])
    with pytest.raises(SettingError, match="verdict = 'bad'"):
        Cell("1", "bad")  # type: ignore[arg-type]


def test_definitions_explain_the_columns() -> None:
    html = Table("T", ["a"], [["1"]], definitions=[("a", "less < more")]).html("a")
    assert re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", html) == [("a", "less &lt; more")]


def test_table_without_rows_sorts_as_text() -> None:
    assert heads(Table("T", ["a", "b"], [])) == ["text", "text"]
