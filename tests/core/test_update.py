"""An update is made only by a defence, is saved bit for bit, and contains no seed or raw gradient."""

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
from refiner.core.update import Update, _joint_matrix, make_update
from refiner.defenses.none import NoDefense
from refiner.defenses.refiner import Refiner
from refiner.errors import ProtectionError, SettingError
from refiner.models import LeNet

SETTINGS = {"alpha": 0.1, "steps": 3, "on": True, "kind": "blend", "radius": None, "range": (0.0, 1.0)}


def tensors() -> dict[str, Tensor]:
    """Names out of alphabetical order, and a parameter without axes."""
    return {"z.weight": torch.randn(2, 3, 4), "a": torch.randn(2), "m.bias": torch.randn(2, 5).double()}


def example_update(values: Mapping[str, Tensor] | None = None) -> Update:
    return make_update(tensors() if values is None else values, samples=7, defense="mine", settings=SETTINGS)


def test_its_attributes_describe_its_tensors() -> None:
    update = example_update()
    assert (update.victims, update.samples, update.defense) == (2, 7, "mine")
    assert update.names == ("z.weight", "a", "m.bias")
    assert update.shapes == {"z.weight": (3, 4), "a": (), "m.bias": (5,)}
    assert torch.equal(update.flat()[:, :12], update.tensors["z.weight"].flatten(1).double())
    assert update.flat().shape == (2, 18)
    assert repr(update) == "Update(mine, victims=2, samples=7, parameters=3)"


@pytest.mark.parametrize("permit", [None, True, object(), "permit"])
def test_only_a_defence_can_make_an_update(permit: object) -> None:
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
def test_a_value_that_is_not_finite_is_an_error(name: str, place: int, value: float) -> None:
    broken = tensors()
    broken[name].view(2, -1)[place, -1] = value
    with pytest.raises(ProtectionError, match=r"^mine made values that are not finite; no update was made$"):
        example_update(broken)


def test_no_tensors_are_an_error() -> None:
    with pytest.raises(ProtectionError):
        example_update({})


def test_an_update_is_read_only() -> None:
    update = example_update()
    with pytest.raises(TypeError):
        update.tensors["a"] = torch.zeros(2)  # type: ignore[index]
    with pytest.raises(TypeError):
        del update.tensors["a"]  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        update.settings["alpha"] = 1  # type: ignore[index]


def test_later_changes_of_its_arguments_do_not_change_it() -> None:
    values, chosen = tensors(), dict(SETTINGS)
    update = make_update(values, samples=1, defense="mine", settings=chosen)
    values["b"], chosen["alpha"] = torch.zeros(2), 9
    assert update.names == ("z.weight", "a", "m.bias")
    assert update.settings["alpha"] == 0.1


def test_its_tensors_have_no_autograd_graph() -> None:
    weight = torch.ones(2, 3, requires_grad=True)
    assert not example_update({"a": 2 * weight}).tensors["a"].requires_grad


def test_save_and_load_are_bit_exact(tmp_path: Path) -> None:
    values = tensors()
    # Values that a detour through text or another type would lose.
    values["a"] = torch.tensor([1e-45, -0.0])
    values["strided"] = torch.randn(3, 2).T
    update = example_update(values)
    update.save(tmp_path / "update")
    loaded = Update.load(tmp_path / "update")
    assert loaded.names == update.names == ("z.weight", "a", "m.bias", "strided")
    for name, value in update.tensors.items():
        assert loaded.tensors[name].dtype == value.dtype
        assert loaded.tensors[name].shape == value.shape
        assert loaded.tensors[name].numpy().tobytes() == value.contiguous().numpy().tobytes()
    assert loaded.shapes == update.shapes
    assert (loaded.samples, loaded.defense) == (7, "mine")
    assert dict(loaded.settings) == SETTINGS
    assert list(loaded.settings) == list(SETTINGS)
    assert repr(loaded) == repr(update).replace("mine", "received, claims mine")


@pytest.mark.parametrize("defense", [NoDefense(), Refiner(iterations=1), Refiner.paper(iterations=1)])
def test_updates_of_defences_can_be_saved(defense: NoDefense | Refiner, tmp_path: Path) -> None:
    x, y = torch.rand(2, 2, 3, 32, 32), torch.randint(10, (2, 2))
    update = defense.protect(Task(LeNet(), example=x[0]), x, y, seed=1)
    update.save(tmp_path / "update")
    loaded = Update.load(tmp_path / "update")
    assert torch.equal(loaded.flat(), update.flat())
    assert dict(loaded.settings) == dict(update.settings) == defense.settings()


@pytest.mark.parametrize(
    ("values", "problem"),
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
def test_tensors_that_are_no_gradients_of_the_same_victims_are_an_error(
    values: dict[str, Tensor], problem: str
) -> None:
    with pytest.raises(ProtectionError) as caught:
        example_update(values)
    assert str(caught.value) == f"mine {problem}; no update was made"


class RecordedOperations(TorchDispatchMode):
    """Records every operation; one that reads a number waits for the GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("whole", [True, False])
def test_values_are_read_once_and_last(whole: bool) -> None:
    matrix = torch.rand(2, 10)
    with RecordedOperations() as operations:
        example_update({"a": matrix[:, :6].view(2, 3, 2), "b": matrix[:, 6:]} if whole else tensors())
    assert [name for name in operations.names if "local_scalar" in name or "item" in name] == [
        operations.names[-1]
    ]


def test_the_file_contains_neither_seed_nor_secret_nor_raw_gradient(tmp_path: Path) -> None:
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
    lowercase = header.lower()
    for word in (b"seed", b"secret", b"key", b"noise", str(seed).encode(), secret.hex().encode()):
        assert word not in lowercase, word
    assert secret not in whole
    raw = gradients(task, x, y)
    for name, value in raw.items():
        assert value.numpy().tobytes() not in whole, name
        assert not torch.allclose(update.tensors[name], value, rtol=1e-3), name


SHAPES = st.lists(st.lists(st.integers(1, 3), max_size=3).map(tuple), min_size=1, max_size=4)


@given(
    shapes=SHAPES, victims=st.integers(1, 3), layout=st.sampled_from(["", "order", "copy", "gap", "dtype"])
)
def test_flat_equals_the_concatenated_tensors_for_every_memory_layout(
    shapes: list[tuple[int, ...]], victims: int, layout: str
) -> None:
    sizes = [math.prod(shape) for shape in shapes]
    matrix = torch.arange(float(victims * (sum(sizes) + 1))).view(victims, -1)
    columns = torch.split(matrix[:, layout == "gap" :][:, : sum(sizes)], sizes, dim=1)
    tensors = [values.view(victims, *shape) for values, shape in zip(columns, shapes, strict=True)]
    if layout == "order":
        tensors.reverse()
    elif layout == "copy":
        tensors[-1] = tensors[-1] + 1
    elif layout == "dtype":
        tensors[-1] = tensors[-1].double()
    update = make_update({str(i): t for i, t in enumerate(tensors)}, samples=1, defense="none", settings={})
    assert torch.equal(
        update.flat(), torch.cat([t.flatten(1) if t.ndim > 1 else t[:, None] for t in tensors], 1)
    )
    tensors[0][0] = torch.nan
    with pytest.raises(ProtectionError):
        make_update({str(i): t for i, t in enumerate(tensors)}, samples=1, defense="none", settings={})


@pytest.mark.parametrize("victims", [1, 2])
def test_columns_of_one_matrix_are_not_copied(victims: int) -> None:
    matrix = torch.rand(victims, 10)
    columns = {"a": matrix[:, :6].view(victims, 3, 2), "b": matrix[:, 6:]}
    flat = make_update(columns, samples=1, defense="none", settings={}).flat()
    assert torch.equal(flat, matrix) and flat.data_ptr() == matrix.data_ptr()


def test_adjacent_tensors_of_other_storages_are_no_joint_matrix() -> None:
    memory = torch.arange(32.0)
    for neighbours in (
        [memory.as_strided((1,), (5,)), memory.as_strided((4,), (5,), 1)],
        [torch.frombuffer(memory.numpy()[:4], dtype=torch.float32).view(1, 4), memory[4:8].view(1, 4)],
    ):
        assert _joint_matrix(neighbours) is None


@pytest.mark.hostile
def test_a_loaded_update_is_received_and_its_defence_a_claim(tmp_path: Path) -> None:
    update = example_update()
    update.save(tmp_path / "u.safetensors")
    loaded = Update.load(tmp_path / "u.safetensors")
    assert not update.received and loaded.received
    assert repr(loaded).startswith("Update(received, claims mine, ")


@pytest.mark.hostile
def test_one_victims_gradients_are_copies_that_hold_no_other_victim(tmp_path: Path) -> None:
    matrix = torch.randn(50, 100)
    update = make_update({"w": matrix[:, :60], "b": matrix[:, 60:]}, samples=1, defense="none", settings={})
    victim = update.victim(7)
    assert torch.equal(torch.cat([victim["w"], victim["b"]]), matrix[7])
    torch.save(victim, tmp_path / "victim.pt")
    assert (tmp_path / "victim.pt").stat().st_size < 50 * 100
    with pytest.raises(SettingError, match=r"^index = 50: expected an integer in \[0, 49\]"):
        update.victim(50)
