"""Tests of the strip charts: positions, axis, text alternatives."""

import math
import re
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refiner.errors import DataError
from refiner.report import Distribution, ReferenceLine, Strip
from refiner.report.scale import Scale

NUMBER = st.floats(-1e6, 1e6).filter(lambda value: value == 0 or abs(value) > 1e-6)


@given(NUMBER, NUMBER)
def test_scale_contains_its_values_between_round_ticks(one: float, other: float) -> None:
    scale = Scale.over(min(one, other), max(one, other))
    ticks = scale.ticks()
    assert ticks[0] <= min(one, other) + 1e-9 * abs(one)
    assert ticks[-1] >= max(one, other) - 1e-9 * abs(one)
    assert 2 <= len(ticks) <= 9
    assert 0 <= scale.percent(one) <= 100
    assert len({f"{tick:.{scale.digits()}f}" for tick in ticks}) == len(ticks)
    mantissa = scale.step / 10 ** math.floor(math.log10(scale.step) + 1e-9)
    assert any(math.isclose(mantissa, round_) for round_ in (1, 2, 5))


@pytest.mark.parametrize(
    ("least", "most", "ticks"),
    [
        (0.0, 1.0, [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (0.03, 0.31, [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35]),
        (5.0, 5.0, [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]),
        (0.0, 0.0, [-0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6]),
    ],
)
def test_ticks_are_round_numbers(least: float, most: float, ticks: list[float]) -> None:
    assert Scale.over(least, most).ticks() == ticks


def test_dots_box_median_and_references_are_drawn_at_their_values() -> None:
    values = [10.0, 20.0, 30.0, 40.0, 50.0]
    figure = Distribution(
        "t", "PSNR", [Strip("none", "DLG", values)], [ReferenceLine("guess", 0.0)], unit="dB"
    )
    html = figure.html("a")
    assert re.findall(r'<circle cx="(.*?)%"', html) == ["20.0", "40.0", "60.0", "80.0", "100.0"]
    assert '<rect class="box" x="40.0%" width="40.00%"' in html
    assert re.findall(r'<line class="middle" x1="(.*?)%"', html) == ["60.0"]
    assert re.findall(r'<line class="reference dash-0" x1="(.*?)%"', html) == ["0.0", "0.0"]
    assert "guess 0 dB</text>" in html
    assert "<p>PSNR</p>" in html


def test_every_strip_has_a_text_alternative() -> None:
    strips = [Strip("none", "DLG", [10.0, 12.5, 20.0]), Strip("Refiner", "DLG", [8.0])]
    html = Distribution("t", "PSNR", strips, [ReferenceLine("guess", 14.0)], unit="dB").html("a")
    assert re.findall("<title.*?>(.*?)</title>", html) == ["none against DLG", "Refiner against DLG"]
    assert re.findall("<desc.*?>(.*?)</desc>", html) == [
        "3 values from 10.0 dB to 20.0 dB, median 12.5 dB; 1 above guess 14 dB",
        "1 value from 8.0 dB to 8.0 dB, median 8.0 dB; 0 above guess 14 dB",
    ]
    assert html.count('role="img"') == 2


def test_infinite_values_are_marked_at_the_end_of_the_axis() -> None:
    values = [10.0, 20.0, math.inf]
    html = Distribution("t", "PSNR", [Strip("none", "DLG", values)]).html("a")
    assert re.findall(r'<circle class="beyond" cx="(.*?)%"', html) == ["100.0"]
    assert f"{median(values):.1f}" in html
    assert "<svg" in Distribution("t", "PSNR", [Strip("none", "DLG", [math.inf])]).html("a")


def test_names_of_close_reference_lines_do_not_overlap() -> None:
    references = [
        ReferenceLine(name, value) for name, value in (("c", 9.0), ("a", 1.0), ("b", 1.1), ("d", 8.9))
    ]
    html = Distribution("t", "x", [Strip("none", "DLG", [0.0, 10.0])], references).html("a")
    names = re.findall(r'<text x="\S+" y="(\d+)" dx="(-?6)".*?>(\w) [\d.]+</text>', html)
    # Names right of their line come first, from left to right; then those left of it, from right to left.
    assert names == [("13", "6", "a"), ("31", "6", "b"), ("49", "-6", "c"), ("67", "-6", "d")]


def test_repeated_defence_names_are_marked() -> None:
    strips = [Strip("none", "DLG", [1.0]), Strip("none", "LAMP", [2.0]), Strip("Refiner", "DLG", [3.0])]
    html = Distribution("t", "x", strips).html("a")
    assert re.findall(r'<div class="(row.*?)">', html) == ["row", "row same", "row"]


@pytest.mark.parametrize(("strips", "axes"), [(12, 1), (13, 2)])
def test_long_charts_have_an_axis_at_both_ends(strips: int, axes: int) -> None:
    html = Distribution("t", "x", [Strip("none", f"DLG {n}", [1.0, 2.0]) for n in range(strips)]).html("a")
    assert html.count('class="base"') == axes
    assert re.findall('text-anchor="middle">(.*?)</text>', html).count("1.0") == axes


def test_nan_empty_and_infinite_references_are_rejected() -> None:
    with pytest.raises(DataError, match="values of 'none' against 'DLG': contain NaN"):
        Strip("none", "DLG", [1.0, math.nan])
    with pytest.raises(DataError, match="values of 'none' against 'DLG': are empty"):
        Strip("none", "DLG", [])
    with pytest.raises(DataError, match="reference line 'guess' = inf"):
        ReferenceLine("guess", math.inf)


def test_chart_without_strips_is_empty() -> None:
    assert Distribution("t", "x", []).html("a") == ""
