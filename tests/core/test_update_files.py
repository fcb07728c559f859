"""A file that is no update is refused in one line, whatever is wrong with it."""

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
    """Files that are no update, by what is wrong with them."""
    good = save({"a": torch.zeros(2, 3)}, about(names=["a"]))
    return {
        "empty": b"",
        "text": b"not an update\n" * 20,
        "pickle": b"\x80\x04\x95" + bytes(100),
        "truncated": good[:-5],
        "cut in the header": good[:20],
        "too long a header": struct.pack("<Q", 2**62) + good[8:],
        "foreign": save({"a": torch.zeros(2, 3)}),
        "other metadata": save({"a": torch.zeros(2, 3)}, {"format": "pt"}),
        "a name that is not there": save({"a": torch.zeros(2, 3)}, about(names=["b"])),
        "names that are no list": save({"a": torch.zeros(2, 3)}, about(names=5)),
        "names that are no names": save({"a": torch.zeros(2, 3)}, about(names=[5])),
        "no names": save({"a": torch.zeros(2, 3)}, about(names=[])),
        "settings that are no mapping": save({"a": torch.zeros(2, 3)}, about(names=["a"], settings=[1])),
        "no settings": save({"a": torch.zeros(2, 3)}, about(names=["a"]) | {"settings": "{"}),
        "no count": save({"a": torch.zeros(2, 3)}, about(names=["a"]) | {"samples": "many"}),
        "no defence": save(
            {"a": torch.zeros(2, 3)}, {k: v for k, v in about(names=["a"]).items() if k != "defense"}
        ),
        "no victims": save({"a": torch.zeros(())}, about(names=["a"])),
        "other victims": save({"a": torch.zeros(2, 3), "b": torch.zeros(3, 3)}, about(names=["a", "b"])),
        "a tensor that no name lists": save(
            {"a": torch.zeros(2, 3), "b": torch.zeros(2)}, about(names=["a"])
        ),
        "a name twice": save({"a": torch.zeros(2, 3)}, about(names=["a", "a"])),
        "integers": save({"a": torch.zeros(2, 3, dtype=torch.int64)}, about(names=["a"])),
        "integers among others": save(
            {"a": torch.zeros(2, 3), "b": torch.zeros(2, 3, dtype=torch.int32)}, about(names=["a", "b"])
        ),
        "bits": save({"a": torch.zeros(2, 3, dtype=torch.bool)}, about(names=["a"])),
        "eight bits": save({"a": torch.zeros(2, 3, dtype=torch.float8_e4m3fn)}, about(names=["a"])),
        "no rows": save({"a": torch.zeros(0, 3)}, about(names=["a"])),
        "settings nested deep": save(
            {"a": torch.zeros(2, 3)}, about(names=["a"]) | {"settings": '{"a":' + "[" * 200_000}
        ),
        "no samples": save({"a": torch.zeros(2, 3)}, about(names=["a"]) | {"samples": "0"}),
    }


def about(names: object, settings: object = None) -> dict[str, str]:
    return {
        "format": "refiner-update-1",
        "samples": "1",
        "defense": "mine",
        "settings": json.dumps(settings or {}),
        "names": json.dumps(names),
    }


@pytest.mark.parametrize("kind", list(broken_files()))
def test_a_broken_file_is_one_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "update"
    path.write_bytes(broken_files()[kind])
    with pytest.raises(DataError) as caught:
        Update.load(path)
    message = str(caught.value)
    assert re.match(
        rf"update = '{re.escape(str(path))}': (unreadable \(.+\)|not written by Update\.save)$", message
    )
    assert "\n" not in message and len(message) < len(str(path)) + 160


@pytest.mark.parametrize("where", ["absent", "."])
def test_a_missing_file_is_one_line(where: str, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        Update.load(tmp_path / where)
    assert re.fullmatch(
        rf"update = '{re.escape(str(tmp_path / where))}': unreadable \(.+\)", str(caught.value)
    )


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_server_takes_no_value_that_is_not_finite(value: float, tmp_path: Path) -> None:
    path = tmp_path / "update"
    save_file({"a": torch.tensor([[1.0, value]])}, path, about(names=["a"]))
    with pytest.raises(DataError) as caught:
        Update.load(path)
    assert str(caught.value) == f"update = {str(path)!r}: holds values that are not finite"


@settings(max_examples=40)
@given(cut=st.integers(0, 10_000), flip=st.integers(0, 255))
def test_no_damage_escapes_as_another_error(
    cut: int, flip: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Any byte of the header changed: the file is read as an update, or refused in one line."""
    good = save({"a": torch.ones(2, 3), "b": torch.ones(2)}, about(names=["a", "b"]))
    place = cut % (len(good) - 32)
    path = tmp_path_factory.getbasetemp() / "damaged"
    path.write_bytes(good[:place] + bytes([flip]) + good[place + 1 :])
    try:
        assert Update.load(path).victims == 2
    except DataError as error:
        assert "\n" not in str(error)
