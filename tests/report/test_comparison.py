"""Tests of the rows of images: images of one column stay aligned."""

import numpy as np
import pytest

from refiner.report import Comparison, ImageRow, InlineImage


def images(count: int) -> list[InlineImage]:
    return [InlineImage(np.full((4, 6, 3), n, np.uint8), "a square") for n in range(count)]


@pytest.mark.parametrize(("count", "widths"), [(1, [1]), (5, [5]), (6, [3, 3]), (8, [4, 4]), (11, [4, 4, 3])])
def test_rows_are_broken_into_even_blocks(count: int, widths: list[int]) -> None:
    rows = [ImageRow("row 0", images(count)), ImageRow("row 1", images(count))]
    blocks = Comparison("t", "", rows).html("a").split('<div class="plate">')[1:]
    assert len(blocks) == len(widths)
    for block, width in zip(blocks, widths, strict=True):
        first, second = block.split('<p class="label">row 1')
        assert first.count("<img") == second.count("<img") == width
        assert "row 0" in first


def test_rows_may_differ_in_length_or_be_absent() -> None:
    uneven = Comparison("g", "", [ImageRow("long", images(7)), ImageRow("short", images(2))])
    assert uneven.html("a").count("<img") == 9
    assert "<img" not in Comparison("g", "", []).html("a")
