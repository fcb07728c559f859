"""Pickled batches are read without executing anything; everything else raises."""

import builtins
import os
import pickle
import pickletools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refiner.data.readers import safe_pickle
from refiner.data.readers.safe_pickle import read_pickled_batch
from refiner.errors import DataError

Batch = Callable[[np.ndarray[Any, Any], Mapping[str, Sequence[int]]], bytes]


def test_batch_of_python_2(batch: Batch, sample_pixels: np.ndarray[Any, Any]) -> None:
    content = batch(sample_pixels[:7], {"labels": range(7)})
    got = read_pickled_batch(content, "data_batch_1")
    assert sorted(got) == ["batch_label", "data", "filenames", "labels"]
    assert got["labels"] == list(range(7)) and len(got["filenames"]) == 7
    assert got["data"].dtype == np.uint8
    assert np.array_equal(got["data"], sample_pixels[:7].reshape(7, -1))
    # The same as with `pickle`, which is safe here because the content is known.
    expected = pickle.loads(content, encoding="latin1")
    assert expected["labels"] == got["labels"] and np.array_equal(expected["data"], got["data"])


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("dtype", ["uint8", "<i8", ">i2"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_batch_of_python_3(protocol: int, dtype: str, order: Any) -> None:
    values = np.arange(12).astype(dtype).reshape(3, 4, order=order)
    got = read_pickled_batch(pickle.dumps({b"data": values, "labels": [1, 2, 300]}, protocol), "a")
    assert np.array_equal(got["data"], values) and got["labels"] == [1, 2, 300]


class Calls:
    """An object whose pickle calls a function."""

    def __init__(self, called: object, *arguments: object) -> None:
        self.called, self.arguments = called, arguments

    def __reduce__(self) -> Any:
        return self.called, self.arguments


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize(
    ("hostile", "named"),
    [
        (Calls(os.system, "echo owned"), f"{os.name}.system"),
        (Calls(builtins.eval, "1 + 1"), r"(__builtin__|builtins)\.eval"),
        (Calls(builtins.getattr, "os", "system"), r"(__builtin__|builtins)\.getattr"),
        ({"data": Calls(os.listdir, ".")}, f"{os.name}.listdir"),
        ({"data": np.array([Calls(builtins.exec, "1")], dtype=object)}, "."),
    ],
)
def test_hostile_pickle_raises(
    hostile: object, named: str, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*arguments: object) -> None:
        raise AssertionError("it was executed")

    content = pickle.dumps(hostile, protocol)
    for place in ("system", "listdir"):
        monkeypatch.setattr(os, place, run)
    with pytest.raises(DataError, match=rf"data_batch_1: (refers to {named}|contains )") as caught:
        read_pickled_batch(content, "data_batch_1")
    assert "\n" not in str(caught.value)


def test_hostile_opcodes_raise() -> None:
    for content, message in {
        b"cos\nsystem\n(S'true'\ntR.": "refers to os.system",
        b"(S'true'\nios\nsystem\n.": "",
        b"\x80\x02cnumpy\nndarray\n)\x81.": "the pickle opcode NEWOBJ",
        b"\x80\x02\x82\x01.": "the pickle opcode EXT1",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.": "refers to os.system",
        b"P1\n.": "the pickle opcode PERSID",
    }.items():
        with pytest.raises(
            DataError, match=f"a: (refers to|contains) .*{message.removeprefix('refers to ')}"
        ):
            read_pickled_batch(content, "a")


def test_deep_nesting_and_a_huge_memo_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="more than 64 lists, tuples and dicts"):
        read_pickled_batch(b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".", "a")
    with pytest.raises(DataError, match="a memo of more than 400,000 values"):
        read_pickled_batch(b"\x80\x02Nr\xff\xff\xff\x7f.", "a")
    with pytest.raises(DataError, match="a memo of more than 400,000 values"):
        read_pickled_batch(b"\x80\x04N" + b"\x94" * 400_001 + b".", "a")
    with pytest.raises(DataError, match="more than 200,000 values at once"):
        read_pickled_batch(b"\x80\x02" + b"N" * 200_001 + b".", "a")
    with pytest.raises(DataError, match="a list within a list"):
        read_pickled_batch(pickle.dumps({"labels": [[1]]}), "a")
    monkeypatch.setattr(safe_pickle, "_MAX_STEPS", 2_000)
    with pytest.raises(DataError, match="more than 2,000 steps"):
        read_pickled_batch(b"\x80\x02N" + b"q\x00" * 2_000 + b".", "a")


# A pair of itself, sixty times: 2⁶⁰ values for a reader that iterates over it, in 300 bytes.
WIDE = b"K\x01" + b"q\x00h\x00\x86" * 60


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cnumpy\ndtype\n" + WIDE + b"\x85R.", r"an array of another kind \(dtype of tuple\)"),
        (b"cnumpy\ndtype\n" + WIDE + b"R.", r"an array of another kind \(dtype of tuple, tuple\)"),
        (b"c_codecs\nencode\n" + WIDE + b"U\x06latin1\x86R.", r"\(encode of tuple, str\)"),
        (b"c_codecs\nencode\nU\x01a" + WIDE + b"\x86R.", r"\(encode of str, tuple\)"),
        (b"cnumpy.core.multiarray\n_reconstruct\n" + WIDE + b"\x85R.", r"\(reconstruct of tuple\)"),
        (b"}" + WIDE + b"K\x01s.", "a tuple as a key"),
        (b"}(" + WIDE + b"K\x01u.", "a tuple as a key"),
        (b"U\x05numpy" + WIDE + b"\x93.", "a tuple in place of a name"),
        (WIDE + b"U\x05dtype\x93.", "a tuple in place of a name"),
        (
            b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n\x85R(K\x01"
            + WIDE
            + b"cnumpy\ndtype\nU\x02u1\x85R\x89U\x01atb.",
            "an array whose shape is not of integers",
        ),
    ],
)
def test_shared_tuples_are_not_iterated_over(content: bytes, message: str) -> None:
    began = time.perf_counter()
    with pytest.raises(DataError, match=f"^a: contains .*{message}") as error:
        read_pickled_batch(b"\x80\x02" + content, "a")
    assert time.perf_counter() - began < 1
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("key", [1, None, ("a",), True])
def test_keys_are_text(key: object) -> None:
    with pytest.raises(DataError, match=r"^a: contains "):
        read_pickled_batch(pickle.dumps({key: [1]}, 2), "a")


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps([1, 2]),
        pickle.dumps("text"),
        pickle.dumps({"data": np.zeros(2)}),
        pickle.dumps({"data": np.array(["a"], dtype=object)}, 2),
        pickle.dumps({"data": np.dtype("u1")}, 2),
        pickle.dumps({"a": {"b": 1}}),
        b"\x80\x02cnumpy\nndarray\n.",
        b"\x80\x02}(cnumpy\nndarray\ncnumpy\nndarray\nu.",
        b"\x80\x02}(U\x01acnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n\x85Ru.",
    ],
)
def test_other_pickles_raise(content: bytes) -> None:
    with pytest.raises(DataError, match=r"^a: (contains|refers to) "):
        read_pickled_batch(content, "a")


def test_every_truncated_batch_raises(batch: Batch, sample_pixels: np.ndarray[Any, Any]) -> None:
    content = batch(sample_pixels[:2, :, :1, :1], {"labels": [1, 2]})
    places = [place for _, _, place in pickletools.genops(content) if place]
    for place in [0, 1, *places]:
        with pytest.raises(DataError):
            read_pickled_batch(content[:place], "a")


@settings(max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 255))
def test_noise_is_an_error_or_a_dict(noise: bytes, place: int, value: int) -> None:
    good = bytearray(pickle.dumps({"data": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": [1, 2]}, 2))
    good[place % len(good)] = value
    for content in (b"\x80\x02" + noise + b".", bytes(good)):
        try:
            assert isinstance(read_pickled_batch(content, "a"), dict)
        except DataError as error:
            assert "\n" not in str(error)
