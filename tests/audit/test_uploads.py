"""The uploads of many victims that are protected in chunks."""

import pytest
import torch

from refiner.audit.local_update import noise_of
from refiner.audit.uploads import uploads
from refiner.core import Task
from refiner.defenses import make_defense
from refiner.errors import SettingError
from refiner.models import LeNet


def test_victims_have_different_noise() -> None:
    x = torch.rand(1, 1, 3, 32, 32).expand(5, -1, -1, -1, -1)
    y = torch.zeros(5, 1, dtype=torch.long)
    task = Task(LeNet(), example=x[0])
    noisy = make_defense("dp-gaussian:magnitude=0.1")
    _, observation = uploads(task, noisy, x, y, labels=False, seed=0, chunk=2)
    distances = torch.pdist(observation.gradient)
    assert float(distances.min()) > 0.5 * float(distances.max())
    _, again = uploads(task, noisy, x, y, labels=False, seed=0, chunk=2)
    assert torch.equal(observation.gradient, again.gradient)


@pytest.mark.parametrize(
    "name",
    [
        "dp-gaussian:magnitude=0.1",
        "dp-laplace:magnitude=0.1,per_sample=true",
        "gq:bits=2,stochastic=true",
        "soteria:sensitivity=estimated,probes=2",
        "refiner:iterations=1+gq:bits=2,stochastic=true",
    ],
)
def test_a_victims_noise_does_not_depend_on_the_chunk_size(name: str) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(5, 1, 3, 32, 32), torch.zeros(5, 1, dtype=torch.long)
    task = Task(LeNet(), example=x[0])
    whole, chunked = (
        uploads(task, make_defense(name), x, y, labels=False, seed=0, chunk=chunk)[1].gradient
        for chunk in (None, 2)
    )
    assert float((chunked - whole).norm() / whole.norm()) < 1e-5


def test_robust_data_is_returned_for_any_defence_that_crafts_it() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(3, 1, 3, 32, 32), torch.zeros(3, 1, dtype=torch.long)
    task = Task(LeNet(), example=x[0])
    single, chain, none = (
        uploads(task, make_defense(text), x, y, labels=False, seed=0, chunk=2)[0]
        for text in ("refiner:iterations=1", "refiner:iterations=1+gq", "gq")
    )
    assert single is not None and chain is not None and torch.equal(single, chain)
    assert single.shape == x.shape and none is None


@pytest.mark.parametrize("name", ["dp-gaussian", "refiner", "refiner+dp-gaussian"])
def test_no_two_of_many_rounds_and_steps_have_the_same_noise_on_gradients(name: str) -> None:
    defense, inputs = make_defense(name), [torch.full((1, 1), step % 20) for step in range(40)]
    drawn = [noise_of(defense, 0, round, inputs, step) for round in range(3) for step in range(40)]
    assert len(set(drawn)) == 3 * 40
    # Of a secret key's seeds there is one for each of the twenty parts of the data.
    assert len({seed for seed, _ in drawn}) == (20 if defense.uses_secret_key else 3 * 40)


def test_a_number_of_an_upload_needs_a_seed() -> None:
    x, y = torch.rand(1, 1, 4), torch.zeros(1, 1, dtype=torch.long)
    task = Task(torch.nn.Linear(4, 2), example=x[0])
    with pytest.raises(SettingError, match="upload = 1: expected None without a seed"):
        make_defense("none").protection(task, x, y, upload=1)
