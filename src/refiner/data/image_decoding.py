"""Decoding of images; anything that goes wrong is a DataError that names the file."""

import io
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from refiner.errors import DataError
from refiner.files import file_error

_EIGHT_BIT_MODES = (
    "1",
    "L",
    "LA",
    "La",
    "P",
    "PA",
    "RGB",
    "RGBA",
    "RGBa",
    "RGBX",
    "CMYK",
    "YCbCr",
    "HSV",
    "LAB",
)


def decode_image(source: Path | bytes, name: str) -> NDArray[np.uint8]:
    """An encoded image as uint8 [height, width, 3], rotated upright, transparency on white.

    >>> decode_image(b"GIF, or so it says", "a.gif")
    Traceback (most recent call last):
    refiner.errors.DataError: a.gif: not a readable image (cannot identify image file)
    """
    if isinstance(source, Path) and not source.is_file():
        raise file_error(name, "no such file", "an existing file")
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            if image.mode not in _EIGHT_BIT_MODES:
                raise file_error(
                    name, f"pixels of mode {image.mode}, expected 8 bits per channel", "8 bits per channel"
                )
            upright = ImageOps.exif_transpose(image) if image.getexif() else image
            if upright.has_transparency_data:
                layer = upright.convert("RGBA")
                upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
            return np.array(upright.convert("RGB"), dtype=np.uint8)
    except DataError:
        raise
    # Pillow's decoders raise any of these for a broken file.
    except (OSError, ValueError, SyntaxError, EOFError, zlib.error, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split()).split(" <")[0].split(" '")[0].rstrip(":")
        raise file_error(name, f"not a readable image ({reason})", "a readable image") from error


def check_offsets(blob: NDArray[Any], offsets: NDArray[Any], name: str) -> NDArray[np.int64]:
    """The bounds int64 [N + 1] of N concatenated images: image i is `blob[bounds[i]:bounds[i + 1]]`.

    >>> check_offsets(np.zeros(4, np.uint8), np.array([0, 9]), "a.npz")
    Traceback (most recent call last):
    refiner.errors.DataError: a.npz: offsets must increase from 0 to 4, the length of blob
    """
    if blob.dtype != np.uint8 or blob.ndim != 1:
        raise DataError(
            f"{name}: blob is {blob.dtype} {list(blob.shape)}, expected uint8 [bytes]",
            field="blob",
            value=blob,
            expected="uint8 [bytes]",
        )
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or len(offsets) < 2:
        raise DataError(
            f"{name}: offsets is {offsets.dtype} {list(offsets.shape)}, expected integers [N + 1]",
            field="offsets",
            value=offsets,
            expected="integers [N + 1]",
        )
    bounds = offsets.astype(np.int64)
    if bounds[0] != 0 or bounds[-1] != len(blob) or (np.diff(bounds) <= 0).any():
        raise DataError(
            f"{name}: offsets must increase from 0 to {len(blob)}, the length of blob",
            field="offsets",
            value=offsets,
            expected=f"integers that increase from 0 to {len(blob)}",
        )
    return bounds


def decode_concatenated(blob: NDArray[Any], offsets: NDArray[Any], name: str) -> NDArray[np.uint8]:
    """Concatenated encoded images of one size as uint8 [N, height, width, 3]; see `check_offsets`."""
    bounds = check_offsets(blob, offsets, name)
    images: NDArray[np.uint8] | None = None
    for index in range(len(bounds) - 1):
        title = f"{name}, image {index}"
        pixels = decode_image(blob[bounds[index] : bounds[index + 1]].tobytes(), title)
        if images is None:
            images = np.empty((len(bounds) - 1, *pixels.shape), np.uint8)
        if pixels.shape != images.shape[1:]:
            height, width = images.shape[1:3]
            raise file_error(
                title,
                f"{pixels.shape[1]}×{pixels.shape[0]} pixels, expected {width}×{height} as the first",
                f"{width}×{height} pixels",
            )
        images[index] = pixels
    assert images is not None  # bounds has at least two entries
    return images
