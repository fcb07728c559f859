"""The uploads of many victims that are protected in chunks."""

from functools import partial
from typing import Any

import pytest
import torch

from refiner.audit import Protocol, Training
from refiner.audit.attacker_images import AttackerImages
from refiner.audit.local_update import noise_of
from refiner.audit.membership.uploads import round_simulator, round_uploads
from refiner.audit.seeds import simulation_seed
from refiner.audit.uploads import uploads
from refiner.core import Task
from refiner.defenses import Refiner, make_defense
from refiner.errors import SettingError
from refiner.models import LeNet

BUDGET: dict[str, Any] = {"search_budget": 1, "error_feedback": False}
WARM: dict[str, Any] = {"error_feedback": False, "warm_start": True, "solver": "descent"}


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
    defense = make_defense(name)
    drawn = [
        noise_of(defense, 0, round=round, steps=40, number=step, first=step % 20)
        for round in range(3)
        for step in range(40)
    ]
    assert len(set(drawn)) == 3 * 40
    # Of a secret key's seeds there is one for each of the twenty parts of the data.
    assert len({seed for seed, _ in drawn}) == (20 if defense.uses_secret_key else 3 * 40)


def test_a_number_of_an_upload_needs_a_seed() -> None:
    x, y = torch.rand(1, 1, 4), torch.zeros(1, 1, dtype=torch.long)
    task = Task(torch.nn.Linear(4, 2), example=x[0])
    with pytest.raises(SettingError, match="upload = 1: expected None without a seed"):
        make_defense("none").protection(task, x, y, upload=1)


@pytest.mark.parametrize(("changes", "chunk"), [({}, 1), (BUDGET, None), (WARM, None)])
def test_clients_keep_their_state_between_steps_and_rounds(
    changes: dict[str, Any], chunk: int | None
) -> None:
    """As one with the same noise that uploads again and again; clients with equal samples share nothing."""
    torch.manual_seed(0)
    x, y = torch.rand(3, 16, 12), torch.randint(0, 2, (3, 16))
    x[1], y[1] = x[0], y[0]
    network = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    task = Task(network, example=x[0])
    settings: dict[str, Any] = {"start": "centred", "iterations": 3, "search": "always", **changes}
    training = Training(rounds=2, epochs=2, protocol=Protocol(lr=1e-30))
    observations = round_uploads(task, Refiner(**settings, chunk=chunk), x, y, training, seed=5)
    simulated = round_simulator(
        task, Refiner(**settings, chunk=chunk), AttackerImages(x[0], y[0], ""), observations, training
    )
    for first_seed, uploaded in (
        (5, [observation.gradient for observation in observations]),
        (simulation_seed(5), simulated.protect(x, y, 5).gradients),
    ):
        defense = Refiner(**settings)
        for client in range(3):
            state = defense.init_state()
            protect = partial(defense.protection, task, x[client], y[client], seed=first_seed, state=state)
            expected = [protect(upload=number).update.flat()[0] for number in range(4)]
            assert not torch.allclose(expected[0], expected[1], atol=1e-3)
            for round in range(2):
                both = expected[2 * round] + expected[2 * round + 1]
                torch.testing.assert_close(uploaded[round][client], both, atol=1e-5, rtol=1e-4)
