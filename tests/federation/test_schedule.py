"""Participants and batches: complete, disjoint between clients, and a function of the seed alone."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refiner.errors import DataError, SettingError
from refiner.federation import FederatedSettings, Schedule


def indices_of(sizes: list[int]) -> list[torch.Tensor]:
    """Consecutive sample indices for clients of these sizes."""
    return list(torch.arange(sum(sizes)).split(sizes))


@given(size=st.integers(1, 40), batch=st.integers(1, 12), steps=st.integers(1, 3), seed=st.integers(0, 9))
def test_an_epoch_uses_each_sample_at_most_once_and_leaves_out_less_than_a_batch(
    size: int, batch: int, steps: int, seed: int
) -> None:
    settings = FederatedSettings(clients=1, batch=batch, local_steps=steps, seed=seed)
    schedule = Schedule([torch.arange(size)], settings)
    batch_size = min(batch, size)
    batches = [schedule.batch_indices(0, round, step) for round in range(1, 30) for step in range(steps)]
    per_epoch = size // batch_size
    for first in range(0, len(batches) - per_epoch + 1, per_epoch):
        samples = torch.cat(batches[first : first + per_epoch]).tolist()
        assert len(set(samples)) == len(samples) > size - batch_size


def test_batches_depend_only_on_seed_client_and_round() -> None:
    settings = FederatedSettings(clients=2, batch=4, seed=1)
    forward, backward = (Schedule(indices_of([20, 20]), settings) for _ in range(2))
    rounds = range(1, 12)
    expected = {round: forward.batch_indices(1, round) for round in rounds}
    assert all(torch.equal(backward.batch_indices(1, round), expected[round]) for round in reversed(rounds))
    other_seed = Schedule(indices_of([20, 20]), FederatedSettings(clients=2, batch=4, seed=2))
    assert any(not torch.equal(other_seed.batch_indices(1, round), expected[round]) for round in rounds)
    first, second = (forward.batch_indices(client, 1).tolist() for client in (0, 1))
    assert set(first).isdisjoint(second)


def test_k_of_m_clients_take_part_and_all_clients_do_eventually() -> None:
    schedule = Schedule(indices_of([1] * 7), FederatedSettings(clients=7, sampled=3))
    rounds = [schedule.participants(round) for round in range(1, 60)]
    assert all(len(set(participants)) == 3 for participants in rounds)
    assert {client for participants in rounds for client in participants} == set(range(7))
    assert rounds[0] == schedule.participants(1)


def test_a_wrong_number_of_clients_or_a_client_without_samples_raises() -> None:
    with pytest.raises(SettingError, match="clients = 3: the data are split across 2 clients") as caught:
        Schedule(indices_of([1, 1]), FederatedSettings(clients=3))
    assert (caught.value.field, caught.value.value) == ("clients", 3)
    with pytest.raises(DataError, match="client 1 has no samples"):
        Schedule(indices_of([1, 0]), FederatedSettings(clients=2))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rounds", 0),
        ("clients", 0),
        ("sampled", 11),
        ("batch", 0),
        ("local_steps", 0),
        ("lr", 0),
        ("seed", -1),
    ],
)
def test_a_setting_out_of_range_raises(field: str, value: int) -> None:
    with pytest.raises(SettingError, match=f"^{field} = {value}: expected"):
        FederatedSettings(**{field: value})
