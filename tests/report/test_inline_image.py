"""Tests of embedded images: exact pixels from arrays and tensors."""

import base64
import io
import re
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from refiner.errors import DataError
from refiner.report import Comparison, ImageRow, InlineImage, Page, render_page, to_pixels


def test_embedded_png_has_the_exact_pixels() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    row = ImageRow("r", [InlineImage(pixels, "a")])
    html = render_page(Page("t", "", sections=[Comparison("g", "", [row])]))
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', html)
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        assert np.array_equal(np.asarray(image), pixels)
    assert 'width="5" height="7"' in html


def test_tensors_and_arrays_become_pixels() -> None:
    unit = torch.linspace(-0.2, 1.2, 3 * 4 * 5).reshape(3, 4, 5)
    expected = (unit.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    assert np.array_equal(to_pixels(unit), expected)
    assert np.array_equal(to_pixels(unit.numpy()), expected)
    assert np.array_equal(to_pixels((unit.clamp(0, 1) * 255).round().byte()), expected)
    grey = to_pixels(torch.full((2, 1, 4, 5), 0.5))
    assert grey.shape == (2, 4, 5, 3)
    assert np.unique(grey).tolist() == [128]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((4, 5)), r"images: \[4, 5\], expected \[\.\.\., C, H, W\]"),
        (np.zeros((2, 4, 5)), r"images: \[2, 4, 5\]"),
        (np.zeros((3, 0, 5)), r"images: \[3, 0, 5\]"),
        (np.zeros((3, 4, 5), np.int64), "images: int64, expected uint8 or floats"),
        (np.full((3, 4, 5), np.nan), "images: contain NaN"),
    ],
)
def test_arrays_of_other_shapes_and_types_are_rejected(images: np.ndarray[Any, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        to_pixels(images)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((4, 4, 3)),
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_inline_image_rejects_other_pixels(pixels: np.ndarray[Any, Any]) -> None:
    with pytest.raises(DataError, match=r"pixels: .* expected uint8 \[height, width, 3\]"):
        InlineImage(pixels, "a")


def test_alternative_text_is_required() -> None:
    with pytest.raises(DataError, match="alt = ' ': expected a text that describes the image"):
        InlineImage(np.zeros((4, 4, 3), np.uint8), " ")
