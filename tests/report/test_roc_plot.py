"""Tests of the plot of ROC curves."""

import re

import pytest

from refiner.errors import DataError
from refiner.report import RocPlot, RocSeries


def test_rates_are_drawn_on_logarithmic_axes() -> None:
    main = RocSeries("a < b", [(0.0, 0.0, 0.0, 0.1), (0.01, 0.1, 0.01, 1.0), (1.0, 1.0, 1.0, 1.0)])
    other = RocSeries("without a defence", [(0.001, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 1.0)])
    html = RocPlot("Members", [main, other], "All candidates.").html("a")
    band, chance, first, second = re.findall('points="(.*?)"', html)
    assert chance == "0.0,300.0 100.0,0.0"
    assert first == "0.0,300.0 33.33,100.0 100.0,0.0" and second == "0.0,0.0 100.0,0.0"
    # There along the upper ends and back along the lower ones.
    assert band == "0.0,100.0 33.33,0.0 100.0,0.0 100.0,0.0 33.33,200.0 0.0,300.0"
    assert "All candidates. Solid: a &lt; b, with its 95 % interval; dashed: without a defence" in html
    assert "a &lt; b: true-positive rate 0.1 at 0.01, 0.1 at 0.1" in html


@pytest.mark.parametrize("points", [[], [(0.0, 1.5, 1.0, 1.0)]])
def test_points_must_be_rates(points: list[tuple[float, float, float, float]]) -> None:
    with pytest.raises(DataError, match=r"curve 'a': (no points|not in 0\.\.1), expected rates"):
        RocSeries("a", points)
