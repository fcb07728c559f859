"""Tests of the plot of curves."""

import math
import re

import pytest

from refiner.errors import DataError
from refiner.report import Curves, CurveSeries, ReferenceLine


def test_curves_are_drawn_labelled_and_described() -> None:
    curves = Curves(
        "Accuracy",
        [CurveSeries("a < b", [(0, 10.0), (100, 50.0)]), CurveSeries("reference", [(50, 30.0), (100, 50.0)])],
        "rounds",
        "%",
        [ReferenceLine("goal", 40.0)],
        unit="%",
    )
    html = curves.html("a")
    assert re.findall('points="(.*?)"', html) == ["0.0,300.0 100.0,0.0", "50.0,150.0 100.0,0.0"]
    assert html.count("<circle") == 4 and "goal 40 %" in html
    assert "a &lt; b: 2 values, 10 % at 0, 50 % at 100; reference: 2 values, 30 % at 50" in html
    # The labels of equal ends are one above the other.
    assert re.findall(r'class="label" x="100.0%" y="(.*?)"', html) == ["-9", "19"]


def test_labels_of_falling_curves_cover_neither_a_curve_nor_the_axis() -> None:
    falling = [(at, 4.0 - at / 50) for at in range(101)]
    lower = [(at, height - 1.0) for at, height in falling]
    html = Curves("Loss", [CurveSeries("a", falling), CurveSeries("b", lower)], "rounds", "loss").html("a")
    first, second = (float(top) for top in re.findall(r'class="label" x="100.0%" y="(.*?)"', html))
    ends = [float(line.split(",")[-1]) for line in re.findall('points="(.*?)"', html)]
    assert ends == [150.0, 225.0]  # the axis, at 300, is one step below the lowest end
    assert (first, second) == (169.0, 244.0)  # below the ends of the curves, which come from above
    # An axis of accuracies does not become negative; the label is above it.
    html = Curves("Accuracy", [CurveSeries("a", [(0, 5.0), (1, 0.0)])], "rounds", "%").html("a")
    assert re.findall(r'class="label" x="100.0%" y="(.*?)"', html) == ["291"]


def test_long_curves_have_one_dot_at_their_end() -> None:
    points = [(n, float(n)) for n in range(100)]
    assert Curves("T", [CurveSeries("a", points)], "x", "y").html("a").count("<circle") == 1


@pytest.mark.parametrize("points", [[], [(0.0, math.nan)], [(math.inf, 1.0)]])
def test_points_are_finite(points: list[tuple[float, float]]) -> None:
    with pytest.raises(DataError, match="curve 'a': "):
        CurveSeries("a", points)
    assert Curves("T", [], "x", "y", note="None.").html("a") == '<p class="note">None.</p>\n'


@pytest.mark.parametrize("value", [0.0, 5.0])
def test_a_single_point_is_drawn(value: float) -> None:
    assert "<circle" in Curves("T", [CurveSeries("a", [(0, value)])], "x", "y").html("a")
