"""Who spoils secure sums is found by whom every spoiled sum has in common."""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refiner.federation.secure import Identity, SpoiledSum, SpoilerSearch

pytestmark = pytest.mark.hostile


@settings(max_examples=40)
@given(
    clients=st.integers(4, 30),
    spoiler=st.integers(0, 3),
    spoils=st.floats(0.3, 1.0),
    seed=st.integers(0, 10_000),
)
def test_the_spoiler_is_banned_and_nobody_else_however_it_behaves(
    clients: int, spoiler: int, spoils: float, seed: int
) -> None:
    search, rng, good = SpoilerSearch(minimum=3, seed=str(seed)), random.Random(seed), 0
    for round in range(1, 150):
        asked = search.choose(range(clients), round)
        assert len(asked) >= min(3, clients)
        if spoiler in asked and rng.random() < spoils:
            search.spoiled(asked)
        else:
            search.succeeded()
            good += 1
        assert not search.hopeless or clients == 4
    assert search.banned == {spoiler}
    assert good > 100


def test_every_client_is_asked_until_a_sum_is_spoiled_and_again_after_good_ones() -> None:
    search = SpoilerSearch(minimum=3, seed="s")
    assert search.choose(range(8), 1) == tuple(range(8))
    search.spoiled(range(8))
    assert len(search.choose(range(8), 2)) == 4
    for _ in range(10):
        search.succeeded()
    assert search.choose(range(8), 13) == tuple(range(8))


def test_two_spoilers_are_found_one_after_the_other() -> None:
    search = SpoilerSearch(minimum=3, seed="s")
    for round in range(1, 200):
        asked = search.choose(range(12), round)
        search.spoiled(asked) if {2, 7} & set(asked) else search.succeeded()
        if {2, 7} <= search.banned:
            break
    assert {2, 7} <= search.banned


def test_with_too_few_clients_to_leave_one_out_the_search_is_hopeless() -> None:
    search = SpoilerSearch(minimum=3, seed="s")
    for round in range(1, 11):
        assert not search.hopeless
        asked = search.choose(range(3), round)
        assert asked == (0, 1, 2)
        search.spoiled(asked)
    assert search.hopeless and not search.banned


def test_rounds_with_a_spoiler_end_with_sums_of_all_the_others(make_round: Callable[..., Any]) -> None:
    """Client 2 sends random bytes instead of its masked update in every round."""
    identities = {client: Identity.generate() for client in range(6)}
    search = SpoilerSearch(minimum=4, seed="s")
    for number in range(1, 40):
        asked = search.choose(identities, number)
        run = make_round(6, None, number=number, identities={c: identities[c] for c in asked})
        masked = run.mask_updates(run.until_mask())
        if 2 in masked:
            masked[2] = masked[2] | {"masked": random.Random(number).randbytes(len(masked[2]["masked"]))}
        survivors = run.server.collect_masked_updates(masked)
        try:
            result = run.finish_unmasking(survivors)
        except SpoiledSum as error:
            assert error.client is None
            search.spoiled(run.server.survivors)
        else:
            search.succeeded()
        if search.banned:
            break
    assert search.banned == {2}
    assert search.choose(identities, 99) == (0, 1, 3, 4, 5) and 2 not in result.clients
