"""Images on a page: uint8 pixels, embedded as PNG."""

import base64
import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from refiner.errors import DataError
from refiner.report.markup import escape

Pixels = NDArray[np.uint8]
"""[height, width, 3]"""


@dataclass(frozen=True, eq=False)
class InlineImage:
    """One image with its alternative text and an optional caption.

    Args:
        pixels: uint8 `[height, width, 3]`.
        alt: Text for readers who cannot see the image; must not be empty.
        caption: Text below the image.

    Raises:
        DataError: if the pixels have another shape or type, or `alt` is empty.
    """

    pixels: Pixels
    alt: str
    caption: str = ""

    def __post_init__(self) -> None:
        check_pixels("pixels", self.pixels)
        if not self.alt.strip():
            raise DataError(field="alt", value=self.alt, expected="a text that describes the image")


def check_pixels(name: str, pixels: Pixels) -> None:
    """Raise `DataError` unless `pixels` is uint8 [height, width, 3]."""
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
        raise DataError(
            f"{name}: {pixels.dtype} {list(pixels.shape)}, expected uint8 [height, width, 3]", field=name
        )


def to_pixels(images: ArrayLike) -> Pixels:
    """Return images as uint8 `[..., H, W, 3]` pixels.

    Args:
        images: An array, or a tensor in CPU memory, `[..., C, H, W]` with 1 or 3 channels: uint8, or
            floats in 0..1; floats outside that range are clipped.

    Returns:
        uint8 `[..., H, W, 3]`; a single channel is repeated.

    Raises:
        DataError: for another shape or type, and for NaN.

    >>> to_pixels(np.full((1, 2, 4), 1.5)).shape, to_pixels(np.full((1, 1, 1), 1.5)).ravel().tolist()
    ((2, 4, 3), [255, 255, 255])
    """
    values = np.asarray(images)
    if values.ndim < 3 or values.shape[-3] not in (1, 3) or values.size == 0:
        raise DataError(
            f"images: {list(values.shape)}, expected [..., C, H, W] with 1 or 3 channels", field="images"
        )
    if values.dtype != np.uint8:
        if values.dtype.kind != "f":
            raise DataError(f"images: {values.dtype}, expected uint8 or floats", field="images")
        if np.isnan(values).any():
            raise DataError("images: contain NaN, expected finite numbers", field="images")
        values = (values.clip(0, 1) * 255).round().astype(np.uint8)
    channels_last = np.moveaxis(values, -3, -1)
    return np.ascontiguousarray(np.broadcast_to(channels_last, (*channels_last.shape[:-1], 3)))


def img_element(pixels: Pixels, alt: str) -> str:
    """Return an `<img>` whose source is the PNG itself, as a data URL."""
    height, width = pixels.shape[:2]
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    data = base64.b64encode(buffer.getvalue()).decode("ascii")
    return f'<img src="data:image/png;base64,{data}" width="{width}" height="{height}" alt="{escape(alt)}">'
