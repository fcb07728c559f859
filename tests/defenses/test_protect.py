"""`Defense.protect`: shapes, independent victims, seeds, and errors instead of an unprotected update."""

import traceback
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from refiner import DataError, Defense, LeNet, NoDefense, ProtectionError, Refiner, RefinerError, Task
from refiner.core.gradients import Gradients, gradients
from refiner.core.noise import NoiseSource
from refiner.data import load_sample
from refiner.defenses import Batch, Chain, GradientTransform, Upload

DEFENSES: dict[str, Defense] = {
    "none": NoDefense(),
    "refiner": Refiner(),
    "refiner, paper": Refiner.paper(iterations=2),
    "refiner, searched": Refiner(iterations=5, search="always", error_feedback=False),
    "refiner, centred": Refiner(iterations=5, start="centred", search="always", error_feedback=False),
    "refiner, never, clamped": Refiner(search="never", white=0.3, clamp=True),
}
every_defense = pytest.mark.parametrize("defense", DEFENSES.values(), ids=DEFENSES)
# The seeds of the others are those of test_every.py.
further_settings = pytest.mark.parametrize("name", ["refiner, centred", "refiner, never, clamped"])


@pytest.fixture(scope="module")
def task() -> Task:
    """One convolution: the requirements do not depend on the model, and LeNet takes twice as long."""
    torch.manual_seed(0)
    body = nn.Conv2d(3, 12, 5, stride=2, padding=2)
    model = nn.Sequential(body, nn.GELU(), nn.Flatten(), nn.Linear(12 * 16 * 16, 10))
    return Task(model, example=torch.rand(2, 3, 32, 32))


@pytest.fixture(scope="module")
def batch() -> tuple[Tensor, Tensor]:
    sample = load_sample()
    return sample.images[:6].view(3, 2, 3, 32, 32), sample.labels[:6].view(3, 2)


def difference(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())


@every_defense
def test_updates_have_the_tasks_shapes_and_the_defences_settings(
    defense: Defense, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    update = defense.protect(task, *batch)
    assert update.names == task.names
    assert update.shapes == task.shapes
    assert (update.victims, update.samples, update.defense) == (3, 2, defense.name)
    assert update.flat().dtype == torch.float32
    assert not update.flat().requires_grad
    assert update.settings == defense.settings()


@every_defense
def test_one_client_can_be_passed_without_a_victim_axis(
    defense: Defense, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    x, y = batch
    whole = defense.protect(task, x[:1], y[:1], seed=3).flat()
    assert torch.equal(defense.protect(task, x[0], y[0], seed=3).flat(), whole)


@every_defense
def test_a_victims_upload_does_not_depend_on_other_victims(
    defense: Defense, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    x, y = batch
    ids = torch.arange(6).view(3, 2)
    together = defense.protect(task, x, y, ids=ids, seed=1).flat()
    for victim in range(3):
        one = slice(victim, victim + 1)
        alone = defense.protect(task, x[one], y[one], ids=ids[one], seed=1).flat()
        assert difference(alone, together[one]) < 1e-4


@further_settings
def test_the_same_seed_gives_the_same_update(name: str, task: Task, batch: tuple[Tensor, Tensor]) -> None:
    first, second = (DEFENSES[name].protect(task, *batch, seed=5).flat() for _ in range(2))
    assert torch.equal(first, second)


@further_settings
def test_two_clients_draw_different_noise_without_a_seed(
    name: str, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    defense = DEFENSES[name]
    clients = [type(defense)(**defense.settings()) for _ in range(2)]
    first, second = (client.protect(task, *batch).flat() for client in clients)
    assert difference(first, second) > 1e-3


def test_no_defence_uploads_the_raw_gradient(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    raw = gradients(task, *batch)
    update = NoDefense().protect(task, *batch)
    assert all(torch.equal(update.tensors[name], raw[name]) for name in task.names)


def _invalid(x: Tensor, y: Tensor, how: str) -> tuple[object, object]:
    data = {
        "NaN": (x.clone().fill_(torch.nan), y),
        "infinity": (torch.where(x == x.flatten()[0], torch.inf, x), y),
        "label too large": (x, y + 10),
        "negative label": (x, y - 10),
        "labels as floats": (x, y.float()),
        "labels of another shape": (x, y[:, :1]),
        "integer images": ((255 * x).to(torch.uint8), y),
        "another size": (x[..., :31], y),
        "no victims": (x[:0], y[:0]),
        "an axis too many": (x[None], y[None]),
        "another dtype": (x.double(), y),
        "half precision": (x.half(), y),
        "another device": (x.to("meta"), y),
        "not a tensor": (x.tolist(), y),
        "sparse images": (x.to_sparse(), y),
        "packed images": (x[0].to_mkldnn(), y[0]),
        "sparse labels": (x, y.to_sparse()),
    }
    return data[how]


WRONG = (
    "NaN",
    "infinity",
    "label too large",
    "negative label",
    "labels as floats",
    "labels of another shape",
    "integer images",
    "another size",
    "no victims",
    "an axis too many",
    "another dtype",
    "half precision",
    "another device",
    "not a tensor",
    "sparse images",
    "packed images",
    "sparse labels",
)


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("name", ["none", "refiner"])
def test_invalid_data_raises_a_one_line_error(
    name: str, how: str, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    x, y = _invalid(*batch, how)
    with pytest.raises(DataError) as raised:
        DEFENSES[name].protect(task, x, y)  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 200


def test_the_error_for_sparse_data_names_the_layout(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    with pytest.raises(DataError) as raised:
        Refiner().protect(task, x.to_sparse(), y)
    shown = "torch.sparse_coo torch.float32 [3, 2, 3, 32, 32]"
    assert str(raised.value) == f"x = {shown}: expected dense floating-point inputs"


@given(
    shape=st.lists(st.integers(0, 4), min_size=0, max_size=6), labels=st.lists(st.integers(0, 4), max_size=3)
)
def test_any_shape_is_protected_or_raises_a_one_line_error(shape: list[int], labels: list[int]) -> None:
    task = _tiny_task()
    x, y = torch.rand(shape), torch.zeros(labels, dtype=torch.long)
    try:
        update = NoDefense().protect(task, x, y)
    except RefinerError as error:
        assert "\n" not in str(error)
    else:
        assert update.victims * update.samples == y.numel()


@cache
def _tiny_task() -> Task:
    torch.manual_seed(0)
    return Task(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), example=torch.rand(2, 2, 2))


def test_a_model_that_returns_nan_raises(batch: tuple[Tensor, Tensor]) -> None:
    model = LeNet()
    task = Task(model, example=torch.rand(2, 3, 32, 32))
    with torch.no_grad():
        model.head.bias[0] = torch.nan
    for defense in (NoDefense(), Refiner(iterations=1)):
        with pytest.raises(ProtectionError, match="not finite"):
            defense.protect(task, *batch)


class _Failing(Defense):
    name = "failing"

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def settings(self) -> dict[str, object]:
        return {}

    def compute_upload(self, task: Task, batch: Batch) -> Upload:
        raise self.error


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        (torch.OutOfMemoryError("64 GiB, x = 0.123"), ProtectionError, "memory"),
        (RuntimeError("x = 0.123"), ProtectionError, "no update was made"),
        (ValueError("x = 0.123"), ProtectionError, "no update was made"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_a_failing_defence_raises_an_error_without_data(
    error: BaseException, raised: type[BaseException], text: str, task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    with pytest.raises(raised, match=text) as caught:
        _Failing(error).protect(task, *batch)
    assert "0.123" not in "".join(traceback.format_exception(caught.value))


def test_invalid_ids_tasks_and_seeds_raise(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    for ids in (torch.zeros(3, 1, dtype=torch.long), torch.zeros(3, 2), -torch.ones(3, 2, dtype=torch.long)):
        with pytest.raises(DataError, match="ids"):
            Refiner(iterations=1).protect(task, *batch, ids=ids)
    with pytest.raises(DataError, match=r"^ids = torch.sparse_coo torch.int64 \[3, 2\]: expected dense "):
        Refiner(iterations=1).protect(task, *batch, ids=torch.arange(6).view(3, 2).to_sparse())
    with pytest.raises(DataError, match=r"^ids on meta: expected a device that holds values$"):
        Refiner(iterations=1).protect(task, *batch, ids=torch.zeros(3, 2, dtype=torch.long, device="meta"))
    with pytest.raises(DataError, match="ids = list"):
        Refiner(iterations=1).protect(task, *batch, ids=[1, 2])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="task = LeNet"):
        NoDefense().protect(LeNet(), *batch)  # type: ignore[arg-type]
    with pytest.raises(RefinerError, match="seed = -1"):
        NoDefense().protect(task, *batch, seed=-1)


def test_an_error_about_an_argument_names_it(task: Task, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    for data, field in (((x * torch.nan, y), "x"), ((x, y + 10), "y"), ((x[..., :31], y), "x")):
        with pytest.raises(DataError) as raised:
            NoDefense().protect(task, *data)
        assert raised.value.field == field


def test_a_gradient_transform_of_a_third_party_needs_only_public_names(
    task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    @dataclass(frozen=True)
    class SignOnly(GradientTransform):
        """Uploads the signs of the gradient, with random signs at random positions."""

        flip_rate: float = 0.1
        name: ClassVar[str] = "sign-only"

        def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
            signs = {}
            for name, value in gradient.items():
                victims = torch.arange(noise.first_victim, noise.first_victim + len(value))
                drawn = noise.uniform(victims, tuple(value.shape[1:]))
                signs[name] = torch.where(drawn < self.flip_rate, -value.sign(), value.sign())
            return signs

    update = SignOnly().protect(task, *batch, seed=0)
    assert (update.defense, update.settings) == ("sign-only", {"flip_rate": 0.1})
    signs = NoDefense().protect(task, *batch).flat().sign()
    flipped = (update.flat() != signs).float().mean()
    assert 0.08 < float(flipped) < 0.12
    assert Chain((Refiner(iterations=0), SignOnly())).protect(task, *batch).defense == "refiner+sign-only"
    assert SignOnly().wire_bytes(task.shapes) == 4 * task.size
