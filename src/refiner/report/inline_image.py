"""Images on a page: uint8 pixels, inlined as PNG."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from refiner.errors import DataError
from refiner.report.markup import text

Pixels = NDArray[np.uint8]
"""[height, width, 3]"""


@dataclass(frozen=True, eq=False)
class InlineImage:
    """One image, uint8 [height, width, 3], what it shows in words, and an optional caption."""

    pixels: Pixels
    alt: str
    caption: str = ""

    def __post_init__(self) -> None:
        check_pixels("pixels", self.pixels)
        if not self.alt.strip():
            raise DataError("alt: empty, expected words for readers who can't see the image")


def check_pixels(name: str, pixels: Pixels) -> None:
    """Refuse what is no uint8 [height, width, 3]."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
        raise DataError(f"{name}: {pixels.dtype} {list(pixels.shape)}, expected uint8 [height, width, 3]")


def to_pixels(images: ArrayLike) -> Pixels:
    """Floats in 0..1, clipped, or uint8, [..., C, H, W] with 1 or 3 channels, as uint8 [..., H, W, 3].

    An array or a tensor in the memory of the CPU; NaN is refused.

    >>> to_pixels(np.full((1, 2, 4), 1.5)).shape, to_pixels(np.full((1, 1, 1), 1.5)).ravel().tolist()
    ((2, 4, 3), [255, 255, 255])
    """
    values = np.asarray(images)
    if values.ndim < 3 or values.shape[-3] not in (1, 3) or values.size == 0:
        raise DataError(f"images: {list(values.shape)}, expected [..., C, H, W] with 1 or 3 channels")
    if values.dtype != np.uint8:
        if values.dtype.kind != "f":
            raise DataError(f"images: {values.dtype}, expected uint8 or floats")
        if np.isnan(values).any():
            raise DataError("images: hold NaN, expected numbers")
        values = (values.clip(0, 1) * 255).round().astype(np.uint8)
    last = np.moveaxis(values, -3, -1)
    return np.ascontiguousarray(np.broadcast_to(last, (*last.shape[:-1], 3)))


def image(pixels: Pixels, alt: str) -> str:
    """The pixels as an element that needs no other file."""
    height, width = pixels.shape[:2]
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img src="data:image/png;base64,{data}" width="{width}" height="{height}" alt="{text(alt)}">'
