"""Where a training stands: back bit for bit, or refused if a byte of it is another."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from refiner.checkpoint import digest, read_checkpoint, write_checkpoint
from refiner.errors import DataError

SETTINGS = {"lr": 0.1, "kind": "a"}


def tensors() -> dict[str, Tensor]:
    return {
        "weight": torch.arange(6.0).view(2, 3),
        "half": torch.tensor([1.5, -0.0]).bfloat16(),
        "count": torch.tensor(7),
        "on": torch.tensor([True, False]),
        "none": torch.zeros(0, 3),
    }


@pytest.fixture
def written(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path / "state", tensors(), SETTINGS, 5)
    return tmp_path / "state"


def refused(path: Path) -> str:
    held = path.read_bytes()

    def restore(found: Mapping[str, Tensor]) -> None:
        raise AssertionError("restored")

    with pytest.raises(DataError) as caught:
        read_checkpoint(path, SETTINGS, restore)
    assert path.read_bytes() == held
    return str(caught.value)


def test_it_comes_back_bit_for_bit(written: Path) -> None:
    back: dict[str, Tensor] = {}
    assert read_checkpoint(written, SETTINGS, back.update) == 5
    assert set(back) == set(tensors())
    for name, value in tensors().items():
        assert back[name].dtype == value.dtype and torch.equal(back[name], value)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"F32"', b'"I32"'),
        (b'"BF16"', b'"F16" '),
        (b"[2,3]", b"[3,2]"),
        (b"[0,3]", b"[0,4]"),
        (b'"weight"', b'"weighs"'),
        (b'"done":"5"', b'"done":"6"'),
    ],
)
def test_types_shapes_names_and_metadata_are_under_the_checksum(
    before: bytes, after: bytes, written: Path
) -> None:
    content = written.read_bytes()
    assert before in content and len(before) == len(after)
    written.write_bytes(content.replace(before, after, 1))
    assert refused(written) == (
        f"checkpoint = {str(written)!r}: unreadable (its checksum is wrong); delete it to start anew"
    )


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.integers(0, 10_000), change=st.integers(1, 255))
def test_no_byte_can_be_another(place: int, change: int, tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_checkpoint(path, tensors(), SETTINGS, 5)
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= change
    path.write_bytes(content)
    assert re.fullmatch(r"checkpoint = '.*': unreadable \(.+\); delete it to start anew", refused(path))


def test_every_part_changes_the_digest() -> None:
    plain = {"a": torch.zeros(2, 3)}
    others = [
        ({"b": plain["a"]}, {"x": "1"}),
        ({"a": torch.zeros(3, 2)}, {"x": "1"}),
        ({"a": torch.zeros(2, 3, dtype=torch.int32)}, {"x": "1"}),
        ({"a": torch.zeros(2, 3).index_fill(1, torch.tensor(2), 1e-45)}, {"x": "1"}),
        (plain, {"x": "2"}),
        (plain, {"y": "1"}),
        (plain, {}),
    ]
    found = {digest(*parts) for parts in [(plain, {"x": "1"}), *others]}
    assert len(found) == len(others) + 1 and all(len(each) == 64 for each in found)
    # Neither the order of what it is given nor the layout in memory counts.
    two = {"a": torch.rand(2, 3), "b": torch.ones(1)}
    same = {"b": torch.ones(1), "a": two["a"].T.contiguous().T}
    assert digest(two, {"x": "1", "y": "2"}) == digest(same, {"y": "2", "x": "1"})
