"""MATLAB files are read as SciPy reads them; broken and hostile ones raise one-line errors."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from refiner.data.readers.matlab import read_mat
from refiner.errors import DataError

scipy_io = pytest.importorskip("scipy.io")


@pytest.fixture
def arrays() -> dict[str, np.ndarray[Any, Any]]:
    draws = np.random.default_rng(0)
    return {
        "X": draws.integers(0, 256, (5, 4, 3, 7)).astype(np.uint8),
        "y": draws.integers(1, 11, (7, 1)).astype(np.float64),
        "a_longer_name": np.array([[-3, 70_000]], np.int32),
        "half": draws.normal(size=(2, 3)).astype(np.float32),
        "wide": np.array([[2**60]], np.int64),
    }


@pytest.mark.parametrize("packed", [False, True])
def test_arrays_equal_those_of_scipy(
    packed: bool, arrays: dict[str, np.ndarray[Any, Any]], tmp_path: Path
) -> None:
    file = tmp_path / "a.mat"
    others = {"text": "letters", "record": {"a": 1}, "complex": np.array([1j])}
    scipy_io.savemat(file, {**arrays, **others}, do_compression=packed)
    arrays_read, expected = read_mat(file), scipy_io.loadmat(file)
    assert sorted(arrays_read) == sorted(arrays)
    for name, array in arrays.items():
        assert arrays_read[name].dtype == expected[name].dtype == array.dtype
        assert np.array_equal(arrays_read[name], expected[name]) and np.array_equal(arrays_read[name], array)


def element(order: str, kind: int, body: bytes) -> bytes:
    return struct.pack(order + "II", kind, len(body)) + body + b"\0" * (-len(body) % 8)


def matrix(order: str, name: bytes, shape: tuple[int, ...], kind: int, values: bytes, stored: int) -> bytes:
    return element(
        order,
        14,
        element(order, 6, struct.pack(order + "II", kind, 0))
        + element(order, 5, struct.pack(f"{order}{len(shape)}i", *shape))
        + element(order, 1, name)
        + element(order, stored, values),
    )


def header(order: str) -> bytes:
    return (
        b"MATLAB 5.0 MAT-file, by hand".ljust(124)
        + struct.pack(order + "H", 0x0100)
        + (b"IM" if order == "<" else b"MI")
    )


@pytest.mark.parametrize("order", ["<", ">"])
def test_either_byte_order_and_doubles_stored_as_bytes(order: str, tmp_path: Path) -> None:
    # As MATLAB writes SVHN's labels: of class double, stored as bytes.
    file = tmp_path / "a.mat"
    file.write_bytes(header(order) + matrix(order, b"y", (3, 1), 6, bytes([10, 1, 9]), 2))
    got = read_mat(file)["y"]
    assert got.dtype == np.float64 and got.tolist() == [[10], [1], [9]]
    assert np.array_equal(scipy_io.loadmat(file)["y"], got)


def test_other_files_raise(tmp_path: Path) -> None:
    file = tmp_path / "a.mat"
    for content in (b"", b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\1IM", b"x" * 500):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.mat: not a \.mat file of version 5"):
            read_mat(file)


@pytest.mark.parametrize("packed", [False, True])
def test_truncated_file_raises(packed: bool, arrays: dict[str, np.ndarray[Any, Any]], tmp_path: Path) -> None:
    file = tmp_path / "a.mat"
    scipy_io.savemat(file, arrays, do_compression=packed)
    content = file.read_bytes()
    for end in range(129, len(content), 7):
        file.write_bytes(content[:end])
        try:
            # A file that is cut between two arrays still has the arrays before the cut.
            got = read_mat(file)
        except DataError as error:
            assert "a truncated .mat file" in str(error) or "a broken .mat file" in str(error)
        else:
            assert len(got) < len(arrays) and all(np.array_equal(got[n], arrays[n]) for n in got)


def test_wrong_sizes_and_bombs_raise(tmp_path: Path) -> None:
    file = tmp_path / "a.mat"
    file.write_bytes(header("<") + matrix("<", b"y", (3, 1), 6, bytes(2), 2))
    with pytest.raises(DataError, match=r"'y' has 2 numbers, expected \[3, 1\]"):
        read_mat(file)
    file.write_bytes(header("<") + matrix("<", b"y", (-3, 1), 6, bytes(3), 2))
    with pytest.raises(DataError, match="'y' has 3 numbers"):
        read_mat(file)
    file.write_bytes(header("<") + matrix("<", b"y", (3, 1), 6, bytes(3), 99))
    with pytest.raises(DataError, match="'y' is stored as type 99"):
        read_mat(file)
    bomb = zlib.compress(struct.pack("<II", 14, 2**32 - 8))
    file.write_bytes(header("<") + struct.pack("<II", 15, len(bomb)) + bomb)
    with pytest.raises(DataError, match=r"that expand to 4\.3 GB, expected at most 100 times as much"):
        read_mat(file)


@pytest.mark.hostile
def test_many_arrays_that_are_small_alone_are_a_bomb_together(tmp_path: Path) -> None:
    inner = matrix("<", b"y", (2**24, 1), 6, bytes(2**24), 2)
    packed = zlib.compress(inner)
    file = tmp_path / "a.mat"
    file.write_bytes(header("<") + 8 * (struct.pack("<II", 15, len(packed)) + packed))
    with pytest.raises(DataError, match="expected at most 100 times as much"):
        read_mat(file)


@settings(max_examples=200)
@given(place=st.integers(128, 10_000), value=st.integers(0, 255))
@example(place=132, value=0)  # an array without parts
def test_a_changed_byte_is_an_error_or_an_array(
    place: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content = bytearray(header("<") + matrix("<", b"y", (3, 1), 6, bytes([10, 1, 9]), 2))
    content[128 + (place - 128) % (len(content) - 128)] = value
    file = tmp_path_factory.mktemp("mat") / "a.mat"
    file.write_bytes(content)
    try:
        read_mat(file)
    except DataError as error:
        assert "\n" not in str(error)
