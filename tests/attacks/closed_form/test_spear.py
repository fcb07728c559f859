"""SPEAR: whole batches of an MLP with ReLU are exact; where they can't be, the result says so."""

import pytest
import torch
import torch.nn.functional as F

from refiner.attacks import Observation, Spear
from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import make_defense
from refiner.errors import DataError
from refiner.models import MLP, LeNet

SAMPLE = load_sample()
IMAGES = F.avg_pool2d(SAMPLE.images[:12], 4)
LABELS = SAMPLE.labels[:12]


@pytest.fixture(scope="module")
def task() -> Task:
    torch.manual_seed(0)
    return Task(MLP(input_shape=(3, 8, 8), hidden=256, activation="relu"), example=IMAGES[:1])


@pytest.mark.parametrize("batch", [1, 3, 6])
def test_batches_come_back_exactly(task: Task, batch: int) -> None:
    x, y = IMAGES.view(-1, batch, 3, 8, 8)[:2], LABELS.view(-1, batch)[:2]
    result = Spear().reconstruct(Observation.of(task, make_defense("none").protect(task, x, y)))
    apart = (result.x[:, None] - x[:, :, None]).abs().flatten(3).amax(3).amin(2)
    assert float(apart.max()) < 1e-3
    assert result.objective.tolist() == [0, 0] and not bool(result.diverged.any())


def test_deeper_models_give_larger_batches_away() -> None:
    torch.manual_seed(0)
    deep = MLP(input_shape=(3, 8, 8), hidden=512, layers=2, activation="relu")
    task = Task(deep, example=IMAGES[:1])
    update = make_defense("none").protect(task, IMAGES[None], LABELS[None])
    found = Spear().reconstruct(Observation.of(task, update))
    apart = (found.x[0, None] - IMAGES[:, None]).abs().flatten(2).amax(2).amin(1)
    assert len(IMAGES) == 12 and float(apart.max()) < 1e-3 and found.objective.item() == 0


@pytest.mark.parametrize("defense", ["dp-gaussian:magnitude=1e-2,clip=none", "pruning:rate=0.99"])
def test_behind_a_defence_nothing_is_found_and_the_result_says_so(task: Task, defense: str) -> None:
    x, y = IMAGES[None, :6], LABELS[None, :6]
    noisy = make_defense(defense).protect(task, x, y, seed=0)
    result = Spear(starts=256).reconstruct(Observation.of(task, noisy))
    assert float(result.objective) > 0.5 and bool(result.x.isfinite().all())


def test_with_too_few_starts_nothing_is_confirmed(task: Task) -> None:
    update = make_defense("none").protect(task, IMAGES[None, :6], LABELS[None, :6])
    result = Spear(starts=2).reconstruct(Observation.of(task, update))
    assert result.objective.item() == 1 and bool((result.x == 0.5).all())


def test_models_and_batches_that_it_does_not_fit_are_one_line(task: Task) -> None:
    with pytest.raises(DataError, match=r"a fully connected first layer .* which spear inverts"):
        Spear().check(Task(LeNet(), example=SAMPLE.images[:1]))
    with pytest.raises(DataError, match=r"expected a ReLU after its first layer"):
        Spear().check(Task(MLP(input_shape=(3, 8, 8)), example=IMAGES[:1]))
    narrow = Task(MLP(input_shape=(3, 8, 8), hidden=4, activation="relu"), example=IMAGES[:1])
    update = make_defense("none").protect(narrow, IMAGES[None, :6], LABELS[None, :6])
    with pytest.raises(DataError, match=r"^batch = 6: expected at most 4"):
        Spear().reconstruct(Observation.of(narrow, update))
