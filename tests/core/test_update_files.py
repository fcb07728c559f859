"""Loading a file that is not an update is a one-line error, whatever is wrong with it."""

import json
import math
import re
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from refiner.core.update import Update
from refiner.errors import DataError


def broken_files() -> dict[str, bytes]:
    """Contents of broken files by what is wrong with them."""
    good = save({"a": torch.zeros(2, 3)}, metadata(names=["a"]))
    return {
        "empty": b"",
        "text": b"not an update\n" * 20,
        "pickle": b"\x80\x04\x95" + bytes(100),
        "truncated": good[:-5],
        "cut in the header": good[:20],
        "too long a header": struct.pack("<Q", 2**62) + good[8:],
        "foreign": save({"a": torch.zeros(2, 3)}),
        "other metadata": save({"a": torch.zeros(2, 3)}, {"format": "pt"}),
        "a name that is not there": save({"a": torch.zeros(2, 3)}, metadata(names=["b"])),
        "names that are no list": save({"a": torch.zeros(2, 3)}, metadata(names=5)),
        "names that are no names": save({"a": torch.zeros(2, 3)}, metadata(names=[5])),
        "no names": save({"a": torch.zeros(2, 3)}, metadata(names=[])),
        "settings that are no mapping": save({"a": torch.zeros(2, 3)}, metadata(names=["a"], settings=[1])),
        "no settings": save({"a": torch.zeros(2, 3)}, metadata(names=["a"]) | {"settings": "{"}),
        "no count": save({"a": torch.zeros(2, 3)}, metadata(names=["a"]) | {"samples": "many"}),
        "no defence": save(
            {"a": torch.zeros(2, 3)}, {k: v for k, v in metadata(names=["a"]).items() if k != "defense"}
        ),
        "no victims": save({"a": torch.zeros(())}, metadata(names=["a"])),
        "other victims": save({"a": torch.zeros(2, 3), "b": torch.zeros(3, 3)}, metadata(names=["a", "b"])),
        "a tensor that no name lists": save(
            {"a": torch.zeros(2, 3), "b": torch.zeros(2)}, metadata(names=["a"])
        ),
        "a name twice": save({"a": torch.zeros(2, 3)}, metadata(names=["a", "a"])),
        "integers": save({"a": torch.zeros(2, 3, dtype=torch.int64)}, metadata(names=["a"])),
        "integers among others": save(
            {"a": torch.zeros(2, 3), "b": torch.zeros(2, 3, dtype=torch.int32)}, metadata(names=["a", "b"])
        ),
        "bits": save({"a": torch.zeros(2, 3, dtype=torch.bool)}, metadata(names=["a"])),
        "eight bits": save({"a": torch.zeros(2, 3, dtype=torch.float8_e4m3fn)}, metadata(names=["a"])),
        "no rows": save({"a": torch.zeros(0, 3)}, metadata(names=["a"])),
        "settings nested deep": save(
            {"a": torch.zeros(2, 3)}, metadata(names=["a"]) | {"settings": '{"a":' + "[" * 200_000}
        ),
        "no samples": save({"a": torch.zeros(2, 3)}, metadata(names=["a"]) | {"samples": "0"}),
    }


def metadata(names: object, settings: object = None) -> dict[str, str]:
    return {
        "format": "refiner-update-1",
        "samples": "1",
        "defense": "mine",
        "settings": json.dumps(settings or {}),
        "names": json.dumps(names),
    }


@pytest.mark.parametrize("problem", list(broken_files()))
def test_a_broken_file_is_a_one_line_error(problem: str, tmp_path: Path) -> None:
    path = tmp_path / "update"
    path.write_bytes(broken_files()[problem])
    with pytest.raises(DataError) as caught:
        Update.load(path)
    message = str(caught.value)
    assert re.match(
        rf"update = '{re.escape(str(path))}': (unreadable \(.+\)|not written by Update\.save)$", message
    )
    assert "\n" not in message and len(message) < len(str(path)) + 160


@pytest.mark.parametrize("name", ["absent", "."])
def test_a_missing_file_is_a_one_line_error(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        Update.load(tmp_path / name)
    assert re.fullmatch(
        rf"update = '{re.escape(str(tmp_path / name))}': unreadable \(.+\)", str(caught.value)
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_an_error(value: float, tmp_path: Path) -> None:
    path = tmp_path / "update"
    save_file({"a": torch.tensor([[1.0, value]])}, path, metadata(names=["a"]))
    with pytest.raises(DataError) as caught:
        Update.load(path)
    assert str(caught.value) == f"update = {str(path)!r}: holds values that are not finite"


@settings(max_examples=40)
@given(cut=st.integers(0, 10_000), flip=st.integers(0, 255))
def test_a_changed_byte_is_never_another_error(
    cut: int, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With any byte of the header changed, the file is read as an update or is a one-line error."""
    good = save({"a": torch.ones(2, 3), "b": torch.ones(2)}, metadata(names=["a", "b"]))
    index = cut % (len(good) - 32)
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(good[:index] + bytes([flip]) + good[index + 1 :])
    try:
        assert Update.load(path).victims == 2
    except DataError as error:
        assert "\n" not in str(error)
