"""Tests of the plot of labelled dots."""

import math
import re

import pytest

from refiner.errors import DataError
from refiner.report import Dot, ReferenceLine, Scatter
from refiner.report.scatter import _WIDTH

LABEL = re.compile(
    r'<svg x="([\d.]+)%"[^>]*><text class="label" y="([\d.-]+)"( text-anchor="end")?><title>(.*?)<'
)


def scatter(*dots: Dot) -> Scatter:
    return Scatter("T", dots, "error", "PSNR", [ReferenceLine("blind guess", 13.3)], unit="dB")


def test_every_dot_is_drawn_labelled_and_described() -> None:
    html = scatter(Dot("none", 0.0, 30.0, "visible"), Dot("a (x < 1)", 0.5, 10.0)).html("a")
    assert html.count("<circle") == 2 and '<circle class="visible" cx="0.0%" cy="0.0"' in html
    assert "none: 30.0 dB at 0, visible; a (x &lt; 1): 10.0 dB at 0.5</desc>" in html
    assert 'class="detail" x="-12" dy="14">x &lt; 1</tspan>' in html
    assert "blind guess 13.3 dB" in html


def test_labels_do_not_overlap_on_a_phone() -> None:
    dots = [Dot(f"defence {n} (alpha = {n})", 0.4 + 0.001 * n, 12.0 + 0.01 * n) for n in range(6)]
    boxes = []
    for at, y, at_end, name in LABEL.findall(scatter(*dots).html("a")):
        width = 6.6 * max(map(len, name.split(" (")))
        left = float(at) / 100 * _WIDTH - (width + 12 if at_end else -12)
        boxes.append((left, left + width, float(y) - 11, float(y) + 17))
    assert len(boxes) == 6
    for n, (left, right, top, bottom) in enumerate(boxes):
        for other in boxes[:n]:
            assert right <= other[0] or left >= other[1] or bottom <= other[2] or top >= other[3]


def test_wide_ranges_are_logarithmic() -> None:
    html = scatter(Dot("a", 0.0, 20.0), Dot("b", 0.02, 19.0), Dot("c", 5.0, 9.0)).html("a")
    ticks = re.findall(r'y="320" text-anchor="middle">(.*?)<', html)
    assert ticks == ["0", "0.01", "0.1", "1", "10"]
    assert '<circle cx="0.0%"' in html


def test_dots_are_finite() -> None:
    with pytest.raises(DataError, match=r"dot 'a': \(inf, 1.0\), expected finite numbers"):
        Dot("a", math.inf, 1.0)
    assert Scatter("T", [], "x", "y", note="None.").html("a") == '<p class="note">None.</p>\n'
