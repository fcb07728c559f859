"""Tests of the grid of images."""

import re
from typing import Any

import numpy as np
import pytest

from refiner.errors import DataError, SettingError
from refiner.report import Grid, GridColumn, GridImage

GREY = np.full((4, 4, 3), 128, np.uint8)


def grid(names: list[str], total: int | None = None) -> Grid:
    images = [GridImage(GREY, "9.1 dB", "neither") for _ in names]
    columns = [GridColumn("none", images, "by linear", "visible"), GridColumn("a < b", images)]
    return Grid("Images", names, [GREY] * len(names), columns, total)


def test_grid_is_a_table_with_headers_and_alternative_texts() -> None:
    html = grid(["frog", "<deer>"]).html("a")
    assert html.count('<th scope="col">') == 3 and html.count('<th scope="row">') == 2
    assert re.findall('alt="(.*?)"', html) == [
        "frog, original",
        "frog, reconstruction with none",
        "frog, reconstruction with a &lt; b",
        "&lt;deer&gt;, original",
        "&lt;deer&gt;, reconstruction with none",
        "&lt;deer&gt;, reconstruction with a &lt; b",
    ]
    # The verdict is an icon to those who see it, and a word to others.
    assert html.count('9.1 dB<span class="unseen">, neither</span>') == 4


@pytest.mark.parametrize(
    ("total", "text"), [(None, ""), (2, ""), (3, "1 image more is"), (9, "7 images more are")]
)
def test_grid_says_how_many_images_are_not_shown(total: int | None, text: str) -> None:
    html = grid(["frog", "deer"], total).html("a")
    assert ("not shown" in html) is bool(text) and text in html


def test_grid_rejects_other_numbers_and_kinds_of_images() -> None:
    floats: Any = np.zeros((2, 2, 3))
    unknown: Any = "bad"
    with pytest.raises(DataError, match="grid 'T', column 'none': 1 images, expected 2"):
        Grid("T", ["a", "b"], [GREY] * 2, [GridColumn("none", [GridImage(GREY)])])
    with pytest.raises(DataError, match="grid 'T', originals: 1 images, expected 2"):
        Grid("T", ["a", "b"], [GREY], [])
    with pytest.raises(DataError, match="originals: float64"):
        Grid("T", ["a"], [floats], [])
    with pytest.raises(SettingError, match="verdict = 'bad'"):
        GridImage(GREY, "", unknown)
