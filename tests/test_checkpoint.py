"""Checkpoints are restored bit for bit, or are an error if a byte has changed."""

import re
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from refiner.checkpoint import read_checkpoint, tensors_digest, write_checkpoint
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


def read_error(path: Path) -> str:
    content = path.read_bytes()

    def restore(tensors: Mapping[str, Tensor]) -> None:
        raise AssertionError("restored")

    with pytest.raises(DataError) as caught:
        read_checkpoint(path, SETTINGS, restore)
    assert path.read_bytes() == content
    return str(caught.value)


def test_a_checkpoint_is_restored_bit_for_bit(written: Path) -> None:
    restored: dict[str, Tensor] = {}
    assert read_checkpoint(written, SETTINGS, restored.update) == 5
    assert set(restored) == set(tensors())
    for name, value in tensors().items():
        assert restored[name].dtype == value.dtype and torch.equal(restored[name], value)


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
def test_the_checksum_covers_dtypes_shapes_names_and_metadata(
    before: bytes, after: bytes, written: Path
) -> None:
    content = written.read_bytes()
    assert before in content and len(before) == len(after)
    written.write_bytes(content.replace(before, after, 1))
    assert read_error(written) == (
        f"checkpoint = {str(written)!r}: unreadable (its checksum is wrong); delete it to start anew"
    )


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(index=st.integers(0, 10_000), change=st.integers(1, 255))
def test_a_change_of_any_byte_is_an_error(index: int, change: int, tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_checkpoint(path, tensors(), SETTINGS, 5)
    content = bytearray(path.read_bytes())
    content[index % len(content)] ^= change
    path.write_bytes(content)
    assert re.fullmatch(r"checkpoint = '.*': unreadable \(.+\); delete it to start anew", read_error(path))


def test_the_digest_depends_on_every_part_and_not_on_order_or_layout() -> None:
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
    digests = {tensors_digest(*arguments) for arguments in [(plain, {"x": "1"}), *others]}
    assert len(digests) == len(others) + 1 and all(len(digest) == 64 for digest in digests)
    # Neither the order of the arguments nor the layout in memory counts.
    two = {"a": torch.rand(2, 3), "b": torch.ones(1)}
    same = {"b": torch.ones(1), "a": two["a"].T.contiguous().T}
    assert tensors_digest(two, {"x": "1", "y": "2"}) == tensors_digest(same, {"y": "2", "x": "1"})
