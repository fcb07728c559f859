"""From encoded bytes to pixels; whatever goes wrong is a DataError that names the file."""

import io
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from refiner.errors import DataError

Pixels = NDArray[np.uint8]
_EIGHT_BIT = ("1", "L", "LA", "La", "P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "HSV", "LAB")


def decode(source: Path | bytes, name: str) -> Pixels:
    """An encoded image as uint8 [height, width, 3], upright and on white; `name` stands in the errors.

    >>> decode(b"GIF, or so it says", "a.gif")
    Traceback (most recent call last):
    refiner.errors.DataError: a.gif: not an image that can be read (cannot identify image file)
    """
    if isinstance(source, Path) and not source.is_file():
        raise DataError(f"{name}: no such file")
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as image:
            if image.mode not in _EIGHT_BIT:
                raise DataError(f"{name}: pixels of mode {image.mode}, expected 8 bits a channel")
            upright = ImageOps.exif_transpose(image) if image.getexif() else image
            if upright.has_transparency_data:
                layer = upright.convert("RGBA")
                upright = Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
            return np.array(upright.convert("RGB"), dtype=np.uint8)
    except DataError:
        raise
    # Pillow's decoders let all of these through on a broken file.
    except (OSError, ValueError, SyntaxError, EOFError, zlib.error, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split()).split(" <")[0].split(" '")[0].rstrip(":")
        raise DataError(f"{name}: not an image that can be read ({reason})") from error


def decode_blob(blob: NDArray[Any], offsets: NDArray[Any], name: str, limit: int | None = None) -> Pixels:
    """Images laid end to end, `blob[offsets[i]:offsets[i+1]]` being the i-th, as uint8 [N, height, width, 3].

    >>> decode_blob(np.zeros(4, np.uint8), np.array([0, 9]), "a.npz")
    Traceback (most recent call last):
    refiner.errors.DataError: a.npz: offsets must rise from 0 to 4, the length of blob
    """
    if blob.dtype != np.uint8 or blob.ndim != 1:
        raise DataError(f"{name}: blob is {blob.dtype} {list(blob.shape)}, expected uint8 [bytes]")
    if offsets.dtype.kind not in "iu" or offsets.ndim != 1 or len(offsets) < 2:
        raise DataError(
            f"{name}: offsets is {offsets.dtype} {list(offsets.shape)}, expected integers [N + 1]"
        )
    marks = offsets.astype(np.int64)
    if marks[0] != 0 or marks[-1] != len(blob) or (np.diff(marks) <= 0).any():
        raise DataError(f"{name}: offsets must rise from 0 to {len(blob)}, the length of blob")
    count = len(marks) - 1 if limit is None else min(limit, len(marks) - 1)
    images: Pixels | None = None
    for index in range(count):
        label = f"{name}, image {index}"
        pixels = decode(blob[marks[index] : marks[index + 1]].tobytes(), label)
        if images is None:
            images = np.empty((count, *pixels.shape), np.uint8)
        if pixels.shape != images.shape[1:]:
            height, width = images.shape[1:3]
            raise DataError(
                f"{label}: {pixels.shape[1]}×{pixels.shape[0]} pixels, expected {width}×{height} as the first"
            )
        images[index] = pixels
    if images is None:
        raise DataError(f"{name}: no images")
    return images


def load_arrays(path: Path) -> Mapping[str, NDArray[Any]]:
    """The arrays of an `.npz`, read without pickle.

    >>> load_arrays(Path("absent.npz"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent.npz: no such file
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        # NumPy leaves a file open that it opened itself and found broken.
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as archive:
            return {key: archive[key] for key in archive.files}
    except (OSError, ValueError, EOFError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not an .npz of plain arrays ({' '.join(str(error).split())})") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise DataError(f"{path}: a broken .npz ({' '.join(str(error).split())})") from error
