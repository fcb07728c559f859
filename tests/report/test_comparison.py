"""Images that belong together stay above each other."""

import numpy as np
import pytest

from refiner.report import Comparison, ImageRow, InlineImage


def images(count: int) -> list[InlineImage]:
    return [InlineImage(np.full((4, 6, 3), n, np.uint8), "a square") for n in range(count)]


@pytest.mark.parametrize(("count", "plates"), [(1, [1]), (5, [5]), (6, [3, 3]), (8, [4, 4]), (11, [4, 4, 3])])
def test_raw_stays_above_robust_in_every_plate(count: int, plates: list[int]) -> None:
    rows = [ImageRow("row 0", images(count)), ImageRow("row 1", images(count))]
    parts = Comparison("t", "", rows).html("a").split('<div class="plate">')[1:]
    assert len(parts) == len(plates)
    for part, width in zip(parts, plates, strict=True):
        first, second = part.split('<p class="label">row 1')
        assert first.count("<img") == second.count("<img") == width
        assert "row 0" in first


def test_rows_of_different_lengths_and_none_at_all() -> None:
    uneven = Comparison("g", "", [ImageRow("long", images(7)), ImageRow("short", images(2))])
    assert uneven.html("a").count("<img") == 9
    assert "<img" not in Comparison("g", "", []).html("a")
