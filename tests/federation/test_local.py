"""Clients on one machine: vectorised local steps, checked data, limits on memory, data loaded ahead."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import NoDefense, Refiner, make_defense
from refiner.errors import DataError
from refiner.federation import FederatedSettings, Schedule, local
from refiner.federation.local import LocalClients
from refiner.models import MLP

SAMPLE = load_sample()
IMAGES, LABELS = SAMPLE.images.mul(255).round().byte(), SAMPLE.labels


def new_task() -> Task:
    torch.manual_seed(0)
    return Task(MLP(hidden=8), example=SAMPLE.images[:1])


def indices_of(*sizes: int) -> list[torch.Tensor]:
    order = torch.randperm(160, generator=torch.Generator().manual_seed(0))
    return list(order[: sum(sizes)].split(list(sizes)))


@pytest.mark.parametrize(
    "text", ["pruning:rate=0.5", "refiner:iterations=1", "soteria:sensitivity=estimated,probes=1"]
)
def test_the_mean_update_equals_the_mean_of_single_clients(text: str) -> None:
    """The two clients with equally large batches are computed together; Soteria computes one by one."""
    settings = FederatedSettings(rounds=2, clients=3, batch=8, lr=0.1, local_steps=2, seed=0)

    def clients() -> LocalClients:
        schedule = Schedule(indices_of(40, 5, 40), settings)
        return LocalClients.seeded(new_task(), IMAGES[:160], LABELS[:160], schedule, make_defense(text))

    together, separate = clients(), clients()
    updates = torch.stack([separate.client_update(client, 2) for client in range(3)])
    expected = local.weighted_mean(updates, [8, 5, 8])
    assert (together.mean_update(2) - expected).norm() < 1e-4 * expected.norm()


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES.float(), LABELS, "images: torch.float32 [200, 3, 32, 32], expected torch.uint8"),
        (IMAGES[:, :, :28], LABELS, "images: torch.uint8 [200, 3, 28, 32], expected torch.uint8"),
        (IMAGES, LABELS[:5], "labels: torch.int64 [5], expected torch.int64 [200]"),
        (IMAGES, LABELS + 1, "labels in [1, 10]: expected [0, 9]"),
    ],
)
def test_data_are_checked_before_the_first_round(
    images: torch.Tensor, labels: torch.Tensor, message: str
) -> None:
    schedule = Schedule(indices_of(40, 40), FederatedSettings(clients=2))
    with pytest.raises(DataError) as caught:
        LocalClients(new_task(), images, labels, schedule, NoDefense())
    assert str(caught.value).startswith(message)
    assert caught.value.field in ("images", "labels") and "tensor of shape" in str(caught.value.value)


def test_more_clients_than_the_limit_are_computed_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = FederatedSettings(rounds=1, clients=5, batch=8)

    def mean_update() -> torch.Tensor:
        schedule = Schedule(indices_of(*[20] * 5), settings)
        return LocalClients(new_task(), IMAGES, LABELS, schedule, NoDefense()).mean_update(1)

    in_one_call = mean_update()
    monkeypatch.setattr(local, "_MAX_CLIENTS", 2)
    torch.testing.assert_close(mean_update(), in_one_call)


def test_the_next_batch_is_loaded_ahead_if_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = FederatedSettings(rounds=3, clients=2, batch=2)
    defense = Refiner(iterations=2, search="always")

    def mean_updates(load: Callable[..., Any] | None = None) -> tuple[list[torch.Tensor], list[int]]:
        clients = LocalClients.seeded(
            new_task(), IMAGES, LABELS, Schedule(indices_of(20, 20), settings), defense
        )
        loaded_rounds, original = [], clients._load

        def counted(step: local.Step) -> Any:
            loaded_rounds.append(step[1])
            return original(step) if load is None else load(original, step, len(loaded_rounds))

        monkeypatch.setattr(clients, "_load", counted)
        return [clients.mean_update(round) for round in (1, 2, 3)], loaded_rounds

    def out_of_memory_once(original: Callable[..., Any], step: local.Step, count: int) -> Any:
        if count == 2:
            raise torch.OutOfMemoryError
        return original(step)

    expected, loaded_rounds = mean_updates()
    assert loaded_rounds == [1, 2, 3]  # each once, and none after the last round
    updates, loaded_rounds = mean_updates(out_of_memory_once)
    assert loaded_rounds == [1, 2, 2, 3]
    assert all(torch.equal(a, b) for a, b in zip(expected, updates, strict=True))
