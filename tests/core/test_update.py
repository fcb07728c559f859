"""An update is made by a defence alone, keeps every bit on its way, and carries nothing that undoes it."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from refiner.core.gradients import gradients
from refiner.core.task import Task
from refiner.core.update import Update, _together, seal
from refiner.defenses.none import NoDefense
from refiner.defenses.refiner import Refiner
from refiner.errors import ProtectionError
from refiner.models import LeNet

SETTINGS = {"alpha": 0.1, "steps": 3, "on": True, "kind": "blend", "radius": None, "range": (0.0, 1.0)}


def tensors() -> dict[str, Tensor]:
    """Names in no order of the alphabet, one parameter without axes of its own."""
    return {"z.weight": torch.randn(2, 3, 4), "a": torch.randn(2), "m.bias": torch.randn(2, 5).double()}


def made(values: Mapping[str, Tensor] | None = None) -> Update:
    return seal(tensors() if values is None else values, samples=7, defense="mine", settings=SETTINGS)


def test_it_says_what_it_holds() -> None:
    update = made()
    assert (update.victims, update.samples, update.defense) == (2, 7, "mine")
    assert update.names == ("z.weight", "a", "m.bias")
    assert update.shapes == {"z.weight": (3, 4), "a": (), "m.bias": (5,)}
    assert torch.equal(update.flat()[:, :12], update.tensors["z.weight"].flatten(1).double())
    assert update.flat().shape == (2, 18)
    assert repr(update) == "Update(mine, victims=2, samples=7, parameters=3)"


@pytest.mark.parametrize("permit", [None, True, object(), "permit"])
def test_only_a_defence_makes_one(permit: object) -> None:
    with pytest.raises(
        ProtectionError, match=r"^an Update is made by a defence: call its protect\(task, x, y\)$"
    ):
        Update(tensors(), samples=1, defense="mine", settings={}, _permit=permit)


@settings(max_examples=25)
@given(
    name=st.sampled_from(["z.weight", "a", "m.bias"]),
    place=st.integers(0, 1),
    value=st.sampled_from([float("nan"), float("inf"), float("-inf")]),
)
def test_a_value_that_is_not_finite_stays(name: str, place: int, value: float) -> None:
    broken = tensors()
    broken[name].view(2, -1)[place, -1] = value
    with pytest.raises(ProtectionError, match=r"^mine made values that are not finite; nothing leaves$"):
        made(broken)


def test_nothing_at_all_is_no_update() -> None:
    with pytest.raises(ProtectionError):
        made({})


def test_read_only() -> None:
    update = made()
    with pytest.raises(TypeError):
        update.tensors["a"] = torch.zeros(2)  # type: ignore[index]
    with pytest.raises(TypeError):
        del update.tensors["a"]  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        update.settings["alpha"] = 1  # type: ignore[index]


def test_later_changes_of_what_it_was_made_from_do_not_reach_it() -> None:
    mine, chosen = tensors(), dict(SETTINGS)
    update = seal(mine, samples=1, defense="mine", settings=chosen)
    mine["b"], chosen["alpha"] = torch.zeros(2), 9
    assert update.names == ("z.weight", "a", "m.bias")
    assert update.settings["alpha"] == 0.1


def test_no_graph_leaves() -> None:
    weight = torch.ones(2, 3, requires_grad=True)
    assert not made({"a": 2 * weight}).tensors["a"].requires_grad


def test_saved_and_loaded_bit_for_bit(tmp_path: Path) -> None:
    values = tensors()
    # Values that a detour through text or another type would lose.
    values["a"] = torch.tensor([1e-45, -0.0])
    values["strided"] = torch.randn(3, 2).T
    update = made(values)
    update.save(tmp_path / "update")
    back = Update.load(tmp_path / "update")
    assert back.names == update.names == ("z.weight", "a", "m.bias", "strided")
    for name, value in update.tensors.items():
        assert back.tensors[name].dtype == value.dtype
        assert back.tensors[name].shape == value.shape
        assert back.tensors[name].numpy().tobytes() == value.contiguous().numpy().tobytes()
    assert back.shapes == update.shapes
    assert (back.samples, back.defense) == (7, "mine")
    assert dict(back.settings) == SETTINGS
    assert list(back.settings) == list(SETTINGS)
    assert repr(back) == repr(update)


@pytest.mark.parametrize("defense", [NoDefense(), Refiner(iterations=1), Refiner.paper(iterations=1)])
def test_every_defence_can_be_carried(defense: NoDefense | Refiner, tmp_path: Path) -> None:
    x, y = torch.rand(2, 2, 3, 32, 32), torch.randint(10, (2, 2))
    update = defense.protect(Task(LeNet(), example=x[0]), x, y, seed=1)
    update.save(tmp_path / "update")
    back = Update.load(tmp_path / "update")
    assert torch.equal(back.flat(), update.flat())
    assert dict(back.settings) == dict(update.settings) == defense.settings()


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"a": torch.zeros(2, 3), "b": torch.zeros(3)}, "made tensors of 2 and of 3 victims (a, b)"),
        ({"a": torch.zeros(2, 3), "b": torch.zeros(())}, "made b without an axis of victims"),
        ({"a": torch.zeros(())}, "made a without an axis of victims"),
        ({"a": torch.zeros(2).long()}, "made a of torch.int64, expected floats of 16, 32 or 64 bits"),
        (
            {"a": torch.zeros(2), "b": torch.zeros(2).bool()},
            "made b of torch.bool, expected floats of 16, 32 or 64 bits",
        ),
        ({"a": torch.zeros(0, 3)}, "made no values"),
        ({}, "made no values"),
    ],
)
def test_tensors_that_are_no_gradients_of_victims(values: dict[str, Tensor], told: str) -> None:
    with pytest.raises(ProtectionError) as caught:
        made(values)
    assert str(caught.value) == f"mine {told}; nothing leaves"


class Looks(TorchDispatchMode):
    """Notes every operation; a GPU is waited for where a number is read."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("whole", [True, False])
def test_one_look_at_the_values_and_it_is_the_last(whole: bool) -> None:
    matrix = torch.rand(2, 10)
    with Looks() as looks:
        made({"a": matrix[:, :6].view(2, 3, 2), "b": matrix[:, 6:]} if whole else tensors())
    assert [name for name in looks.seen if "local_scalar" in name or "item" in name] == [looks.seen[-1]]


def test_the_file_holds_neither_seed_nor_secret_nor_raw_gradient(tmp_path: Path) -> None:
    secret, seed = bytes(range(100, 132)), 918273645
    x, y = torch.rand(2, 2, 3, 32, 32), torch.randint(10, (2, 2))
    task = Task(LeNet(), example=x[0])
    update = Refiner(iterations=1, secret=secret).protect(
        task, x, y, seed=seed, ids=torch.arange(4).view(2, 2)
    )
    assert not {"seed", "secret"} & set(update.settings)
    update.save(tmp_path / "update")

    whole = (tmp_path / "update").read_bytes()
    end = 8 + struct.unpack("<Q", whole[:8])[0]
    header, body = whole[8:end], whole[end:]
    described = json.loads(header)
    assert set(described.pop("__metadata__")) == {"format", "samples", "defense", "settings", "names"}
    assert tuple(described) != () and set(described) == set(task.names)
    # The protected values and not one byte more.
    assert len(body) == 4 * update.flat().numel()
    lowered = header.lower()
    for word in (b"seed", b"secret", b"key", b"noise", str(seed).encode(), secret.hex().encode()):
        assert word not in lowered, word
    assert secret not in whole
    raw = gradients(task, x, y)
    for name, value in raw.items():
        assert value.numpy().tobytes() not in whole, name
        assert not torch.allclose(update.tensors[name], value, rtol=1e-3), name


SHAPES = st.lists(st.lists(st.integers(1, 3), max_size=3).map(tuple), min_size=1, max_size=4)


@given(shapes=SHAPES, victims=st.integers(1, 3), odd=st.sampled_from(["", "order", "copy", "gap", "dtype"]))
def test_flat_is_what_the_tensors_are_whose_ever_memory_they_share(
    shapes: list[tuple[int, ...]], victims: int, odd: str
) -> None:
    sizes = [math.prod(shape) for shape in shapes]
    matrix = torch.arange(float(victims * (sum(sizes) + 1))).view(victims, -1)
    pieces = torch.split(matrix[:, odd == "gap" :][:, : sum(sizes)], sizes, dim=1)
    tensors = [piece.view(victims, *shape) for piece, shape in zip(pieces, shapes, strict=True)]
    if odd == "order":
        tensors.reverse()
    elif odd == "copy":
        tensors[-1] = tensors[-1] + 1
    elif odd == "dtype":
        tensors[-1] = tensors[-1].double()
    update = seal({str(i): t for i, t in enumerate(tensors)}, samples=1, defense="none", settings={})
    assert torch.equal(
        update.flat(), torch.cat([t.flatten(1) if t.ndim > 1 else t[:, None] for t in tensors], 1)
    )
    tensors[0][0] = torch.nan
    with pytest.raises(ProtectionError):
        seal({str(i): t for i, t in enumerate(tensors)}, samples=1, defense="none", settings={})


@pytest.mark.parametrize("victims", [1, 2])
def test_a_whole_matrix_in_parts_is_not_copied(victims: int) -> None:
    matrix = torch.rand(victims, 10)
    parts = {"a": matrix[:, :6].view(victims, 3, 2), "b": matrix[:, 6:]}
    flat = seal(parts, samples=1, defense="none", settings={}).flat()
    assert torch.equal(flat, matrix) and flat.data_ptr() == matrix.data_ptr()


def test_neighbours_in_memory_are_no_matrix() -> None:
    memory = torch.arange(32.0)
    for parts in (
        [memory.as_strided((1,), (5,)), memory.as_strided((4,), (5,), 1)],
        [torch.frombuffer(memory.numpy()[:4], dtype=torch.float32).view(1, 4), memory[4:8].view(1, 4)],
    ):
        assert _together(parts) is None
