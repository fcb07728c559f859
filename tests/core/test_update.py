"""An update is made by a defence alone, keeps every bit on its way, and carries nothing that undoes it."""

import json
import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save, save_file
from torch import Tensor

from refiner.core.gradients import gradients
from refiner.core.task import Task
from refiner.core.update import Update, _together, seal
from refiner.defenses.none import NoDefense
from refiner.defenses.refiner import Refiner
from refiner.errors import DataError, ProtectionError
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


def test_a_server_takes_no_value_that_is_not_finite(tmp_path: Path) -> None:
    save_file({"a": torch.tensor([[1.0, torch.nan]])}, tmp_path / "update", about(names=["a"]))
    with pytest.raises(ProtectionError, match="not finite"):
        Update.load(tmp_path / "update")


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
    except (DataError, ProtectionError) as error:
        assert "\n" not in str(error)


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
