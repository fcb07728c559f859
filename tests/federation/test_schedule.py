"""Who takes part and with what: complete, apart, and the same for everyone who knows the seed."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from refiner.errors import DataError, SettingError
from refiner.federation import Schedule, Training


def parts_of(sizes: list[int]) -> list[torch.Tensor]:
    return list(torch.arange(sum(sizes)).split(sizes))


@given(size=st.integers(1, 40), batch=st.integers(1, 12), steps=st.integers(1, 3), seed=st.integers(0, 9))
def test_a_pass_shows_every_sample_at_most_once_and_misses_less_than_a_batch(
    size: int, batch: int, steps: int, seed: int
) -> None:
    schedule = Schedule([torch.arange(size)], Training(clients=1, batch=batch, local_steps=steps, seed=seed))
    full = min(batch, size)
    walk = [schedule.batch(0, round, step) for round in range(1, 30) for step in range(steps)]
    for first in range(0, len(walk) - size // full + 1, size // full):
        seen = torch.cat(walk[first : first + size // full]).tolist()
        assert len(set(seen)) == len(seen) > size - full


def test_batches_depend_on_seed_client_and_round_alone() -> None:
    training = Training(clients=2, batch=4, seed=1)
    forward, backward = (Schedule(parts_of([20, 20]), training) for _ in range(2))
    rounds = range(1, 12)
    expected = {round: forward.batch(1, round) for round in rounds}
    assert all(torch.equal(backward.batch(1, round), expected[round]) for round in reversed(rounds))
    other = Schedule(parts_of([20, 20]), Training(clients=2, batch=4, seed=2))
    assert any(not torch.equal(other.batch(1, round), expected[round]) for round in rounds)
    assert set(forward.batch(0, 1).tolist()).isdisjoint(forward.batch(1, 1).tolist())


def test_k_of_m_take_part_and_all_come_to_it() -> None:
    schedule = Schedule(parts_of([1] * 7), Training(clients=7, sampled=3))
    rounds = [schedule.participants(round) for round in range(1, 60)]
    assert all(len(set(chosen)) == 3 for chosen in rounds)
    assert {client for chosen in rounds for client in chosen} == set(range(7))
    assert rounds[0] == schedule.participants(1)


def test_wrong_parts() -> None:
    with pytest.raises(SettingError, match="clients = 3: the data are parted among 2"):
        Schedule(parts_of([1, 1]), Training(clients=3))
    with pytest.raises(DataError, match="client 1 has no samples"):
        Schedule(parts_of([1, 0]), Training(clients=2))


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
def test_wrong_settings(field: str, value: int) -> None:
    with pytest.raises(SettingError, match=f"^{field} = {value}: expected"):
        Training(**{field: value})
