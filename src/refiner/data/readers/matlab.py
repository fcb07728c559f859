"""MATLAB's .mat files of version 5, as far as SVHN needs them: arrays of real numbers, packed or not."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from refiner.errors import DataError

_HEADER = 128
_MATRIX, _PACKED = 14, 15
# How numbers are stored, by the type of their element.
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
# What they stand for, by the class of their array: a double may be stored as bytes.
_CLASSES = {
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
_COMPLEX = 0x0800
_MOST = 2**31


class _Element(NamedTuple):
    kind: int
    body: memoryview


def read_mat(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a .mat file by name; what is no array of real numbers is left out.

    >>> read_mat(Path("absent.mat"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent.mat: no such file
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    content = path.read_bytes()
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if len(content) < _HEADER or order is None or not content.startswith(b"MATLAB 5.0"):
        raise DataError(f"{path}: not a .mat file of version 5")
    found = {}
    try:
        for element in _elements(memoryview(content)[_HEADER:], order, str(path)):
            whole = _unpacked(element, order, str(path)) if element.kind == _PACKED else element
            if whole.kind == _MATRIX and (array := _array(whole.body, order, str(path))) is not None:
                found[array[0]] = array[1]
    except StopIteration:
        raise DataError(f"{path}: a truncated .mat file, a part of an array is missing") from None
    except (struct.error, zlib.error, ValueError, UnicodeError, IndexError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: a broken .mat file ({' '.join(str(error).split())})") from error
    return found


def _elements(content: memoryview, order: str, name: str) -> Iterator[_Element]:
    place = 0
    while place < len(content):
        kind, size = struct.unpack_from(order + "II", content, place)
        start = place + 8
        if kind >> 16:  # four bytes at most lie in the tag itself
            kind, size, start = kind & 0xFFFF, kind >> 16, place + 4
            place += 8
        else:
            # A packed element is not filled up to eight bytes.
            place = start + (size if kind == _PACKED else -(-size // 8) * 8)
        if start + size > len(content):
            raise DataError(f"{name}: a truncated .mat file, {start + size - len(content)} bytes are missing")
        yield _Element(kind, content[start : start + size])


def _unpacked(element: _Element, order: str, name: str) -> _Element:
    unpacker = zlib.decompressobj()
    tag = unpacker.decompress(element.body, 8)
    kind, size = struct.unpack(order + "II", tag)
    if size > _MOST:
        raise DataError(f"{name}: an array of {size:,} bytes, expected at most {_MOST:,}")
    body = unpacker.decompress(unpacker.unconsumed_tail, size)
    if len(body) != size:
        raise DataError(f"{name}: a truncated .mat file, {size - len(body)} bytes of an array are missing")
    return _Element(kind, memoryview(body))


def _array(body: memoryview, order: str, name: str) -> tuple[str, NDArray[Any]] | None:
    """Name and values of an array of real numbers, else None."""
    parts = _elements(body, order, name)
    flags = struct.unpack_from(order + "I", next(parts).body)[0]
    kind = _CLASSES.get(flags & 0xFF)
    if kind is None or flags & _COMPLEX:
        return None
    shape = np.frombuffer(next(parts).body, order + "i4")
    called = bytes(next(parts).body).decode("ascii")
    stored, raw = next(parts)
    if stored not in _STORED:
        raise DataError(f"{name}: '{called}' is stored as type {stored}, expected numbers")
    values = np.frombuffer(raw, order + _STORED[stored]).astype(kind, copy=False)
    if (shape < 0).any() or values.size != shape.prod(dtype=np.int64):
        raise DataError(f"{name}: '{called}' has {values.size} numbers, expected {shape.tolist()}")
    return called, values.reshape(shape, order="F")
