"""MATLAB's .mat files of version 5, as far as SVHN needs them: arrays of real numbers, compressed or not.

Not `scipy.io.loadmat`: in SciPy 1.17 one changed byte in the type of an array's data is a segmentation fault,
and a file of 1.5 MB in which `whosmat` shows an array of 3 numbers takes 1.5 GB to load.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from refiner.data.expansion import check_expansion
from refiner.errors import DataError
from refiner.files import file_error

_HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
# The storage format of numbers, by the type of their element.
_STORAGE_DTYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
# The format of an array, by its class: MATLAB may store doubles as bytes if their values allow it.
_ARRAY_DTYPES = {
    6: "f8",
    7: "f4",
    8: "i1",
    9: "u1",
    10: "i2",
    11: "u2",
    12: "i4",
    13: "u4",
    14: "i8",
    15: "u8",
}
_COMPLEX_FLAG = 0x0800


class _Element(NamedTuple):
    type: int
    body: memoryview


def read_mat(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of real numbers in a .mat file by name; all other variables are ignored.

    >>> read_mat(Path("absent.mat"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent.mat: no such file
    """
    if not path.is_file():
        raise file_error(path, "no such file", "an existing file")
    content = path.read_bytes()
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if len(content) < _HEADER_BYTES or order is None or not content.startswith(b"MATLAB 5.0"):
        raise file_error(path, "not a .mat file of version 5", "a .mat file of version 5")
    arrays, expanded = {}, 0
    try:
        for element in _elements(memoryview(content)[_HEADER_BYTES:], order, str(path)):
            if element.type == _COMPRESSED:
                element = _decompress(element, order, path, len(content), expanded)  # noqa: PLW2901
                expanded += len(element.body)
            if element.type == _MATRIX and (named := _read_array(element.body, order, str(path))) is not None:
                arrays[named[0]] = named[1]
    except StopIteration:
        raise file_error(
            path, "a truncated .mat file, a part of an array is missing", "a complete .mat file of version 5"
        ) from None
    except (struct.error, zlib.error, ValueError, UnicodeError, IndexError) as error:
        if isinstance(error, DataError):
            raise
        raise file_error(
            path, f"a broken .mat file ({' '.join(str(error).split())})", "a complete .mat file of version 5"
        ) from error
    return arrays


def _elements(content: memoryview, order: str, path: str) -> Iterator[_Element]:
    position = 0
    while position < len(content):
        element_type, size = struct.unpack_from(order + "II", content, position)
        start = position + 8
        if element_type >> 16:  # up to four bytes of data are stored in the tag itself
            element_type, size, start = element_type & 0xFFFF, element_type >> 16, position + 4
            position += 8
        else:
            # A compressed element is not padded to eight bytes.
            position = start + (size if element_type == _COMPRESSED else -(-size // 8) * 8)
        if start + size > len(content):
            raise file_error(
                path,
                f"a truncated .mat file, {start + size - len(content)} bytes are missing",
                "a complete .mat file of version 5",
            )
        yield _Element(element_type, content[start : start + size])


def _decompress(element: _Element, order: str, path: Path, stored: int, expanded: int) -> _Element:
    """The element inside a compressed one, in a file of `stored` bytes of which `expanded` came so far."""
    decompressor = zlib.decompressobj()
    tag = decompressor.decompress(element.body, 8)
    element_type, size = struct.unpack(order + "II", tag)
    check_expansion(path, stored, expanded + size)
    body = decompressor.decompress(decompressor.unconsumed_tail, size)
    if len(body) != size:
        raise file_error(
            path,
            f"a truncated .mat file, {size - len(body)} bytes of an array are missing",
            "a complete .mat file of version 5",
        )
    return _Element(element_type, memoryview(body))


def _read_array(body: memoryview, order: str, path: str) -> tuple[str, NDArray[Any]] | None:
    """Name and values of an array of real numbers; None for any other variable."""
    parts = _elements(body, order, path)
    flags = struct.unpack_from(order + "I", next(parts).body)[0]
    dtype = _ARRAY_DTYPES.get(flags & 0xFF)
    if dtype is None or flags & _COMPLEX_FLAG:
        return None
    shape = np.frombuffer(next(parts).body, order + "i4")
    name = bytes(next(parts).body).decode("ascii")
    storage_type, content = next(parts)
    if storage_type not in _STORAGE_DTYPES:
        raise file_error(
            path, f"'{name}' is stored as type {storage_type}, expected numbers", f"numbers in '{name}'"
        )
    values = np.frombuffer(content, order + _STORAGE_DTYPES[storage_type]).astype(dtype, copy=False)
    if (shape < 0).any() or values.size != shape.prod(dtype=np.int64):
        raise file_error(
            path,
            f"'{name}' has {values.size} numbers, expected {shape.tolist()}",
            f"{shape.tolist()} numbers in '{name}'",
        )
    return name, values.reshape(shape, order="F")
