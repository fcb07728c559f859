"""Whole rounds: the mean, dropouts at every step, too few clients, clients that go on in another process."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refiner.core import Task
from refiner.defenses import NoDefense
from refiner.errors import DataError, SettingError
from refiner.federation.secure import (
    STEPS,
    AggregationError,
    Agreement,
    FixedPoint,
    Identity,
    SecureClient,
    secure_mean,
    server_view,
)
from refiner.models import LeNet

Make = Callable[..., Any]


@settings(max_examples=30)
@given(st.data(), st.integers(2, 6), st.integers(1, 5), st.sampled_from([(20, 32), (32, 64), (44, 64)]))
def test_the_result_is_the_weighted_mean(
    data: st.DataObject, clients: int, size: int, bits: tuple[int, int]
) -> None:
    values = st.lists(st.floats(-4, 4, width=32), min_size=size, max_size=size)
    updates = torch.tensor(data.draw(st.lists(values, min_size=clients, max_size=clients)))
    weights = data.draw(st.lists(st.integers(1, 50), min_size=clients, max_size=clients))
    got = secure_mean(updates, weights, encoding=FixedPoint(4, *bits))
    counts = torch.tensor(weights, dtype=torch.float64)
    true = (counts[:, None] * updates.double()).sum(0) / counts.sum()
    # Each client rounds by half a unit at most; then float64's own rounding.
    assert (got.mean - true).abs().max() <= clients * 0.5 / (2 ** bits[0] * sum(weights)) + 1e-14
    assert got.weight == sum(weights)
    assert got.clients == tuple(range(clients))


def test_the_sum_is_exact_to_the_last_bit() -> None:
    updates = torch.randint(-(2**20), 2**20, (8, 50)).double() / 2**16
    assert (secure_mean(updates).mean * 8 == updates.sum(0)).all()


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("number", [1, 2])
def test_dropouts_are_survived_at_every_step(step: str, number: int) -> None:
    updates, weights = torch.randn(5, 40), [3, 1, 4, 1, 5]
    lost = dict.fromkeys([3, 0][:number], step)
    got = secure_mean(updates, weights, threshold=3, lost=lost)
    # What was masked and sent counts, even if its sender is gone by then.
    counted = [c for c in range(5) if c not in lost or STEPS.index(step) > STEPS.index("mask")]
    counts = torch.tensor([weights[c] for c in counted], dtype=torch.float64)
    true = (counts[:, None] * updates[counted].double()).sum(0) / counts.sum()
    assert got.clients == tuple(counted)
    assert torch.allclose(got.mean, true, atol=1e-9, rtol=0)


def test_dropouts_at_different_steps_are_survived() -> None:
    updates = torch.randn(8, 10)
    got = secure_mean(updates, threshold=5, lost={1: "share", 4: "mask", 6: "unmask"})
    kept = [0, 2, 3, 5, 6, 7]
    assert got.clients == tuple(kept)
    assert torch.allclose(got.mean, updates[kept].double().mean(0), atol=1e-9, rtol=0)


@pytest.mark.parametrize("step", STEPS)
def test_fewer_than_the_threshold_are_refused(step: str) -> None:
    with pytest.raises(AggregationError, match=rf"^{step}: 2 of 5 clients answered, expected 3 or more$"):
        secure_mean(torch.randn(5, 4), threshold=3, lost=dict.fromkeys([0, 1, 2], step))


def test_a_client_goes_on_in_another_process(make_round: Make) -> None:
    play = make_round(4)

    def elsewhere() -> None:
        for c, client in play.clients.items():
            state = client.state()
            play.clients[c] = SecureClient.restore(play.agreement, c, play.identities[c], state)

    adverts = play.adverts()
    elsewhere()
    shares = play.shares(play.server.keys(adverts))
    elsewhere()
    masked = play.masked(play.server.relay(shares), lost=[1])
    elsewhere()
    survivors = play.server.survivors(masked)
    confirmed = {c: play.clients[c].confirm(survivors) for c in masked}
    elsewhere()
    signatures = play.server.signatures(confirmed)
    revealed = {c: play.clients[c].unmask(signatures) for c in masked}
    elsewhere()
    got = play.server.aggregate(revealed)
    assert torch.allclose(got.mean, play.updates[[0, 2, 3]].double().mean(0), atol=1e-9, rtol=0)
    with pytest.raises(AggregationError, match="asked for unmask, but its next step is done"):
        play.clients[0].unmask(signatures)


def test_what_is_kept_after_the_end_has_no_secret(make_round: Make) -> None:
    play = make_round(3, None)
    secrets = [s.hex() for s in play.clients[0]._held.secrets]
    assert all(s in play.clients[0].state().decode() for s in secrets)
    survivors = play.until_confirm()
    signatures = play.server.signatures({c: play.clients[c].confirm(survivors) for c in range(3)})
    play.clients[0].unmask(signatures)
    assert play.clients[0].step == "done"
    assert not any(s in play.clients[0].state().decode() for s in secrets)
    assert '"shares": {}' in play.clients[0].state().decode()


def test_a_state_of_another_round_or_client_is_refused(make_round: Make) -> None:
    one = make_round(3, 2)
    other = make_round(3, 2, number=2, identities=one.identities)
    state = one.clients[0].state()
    for agreement, c in ((other.agreement, 0), (one.agreement, 1)):
        with pytest.raises(AggregationError, match="of another client, session, round or settings"):
            SecureClient.restore(agreement, c, one.identities[c], state)
    for broken in (b"", b"{}", b"[]", state[:-9], state.replace(b'"advertise"', b'"mask?"')):
        with pytest.raises(AggregationError, match=r"^state of client 0: "):
            SecureClient.restore(one.agreement, 0, one.identities[0], broken)


def test_the_view_of_a_server_is_what_the_protocol_opens() -> None:
    task = Task(LeNet(), example=torch.rand(1, 3, 32, 32))
    x, y = torch.rand(6, 2, 3, 32, 32), torch.randint(10, (6, 2))
    update = NoDefense().protect(task, x, y)
    seen = server_view(update, clients=3)
    assert seen.shape == (2, 15826)
    for row, group in zip(seen, update.flat().split(3), strict=True):
        assert (secure_mean(group).mean.to(row) == row).all()
    assert torch.allclose(seen[0], update.flat()[:3].mean(0), atol=1e-6)
    with pytest.raises(SettingError, match=r"clients = 4: expected a divisor of the update's 6 victims"):
        server_view(update, clients=4)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 65.0])
def test_a_client_whose_update_is_refused_sends_nothing_and_the_others_go_on(
    make_round: Make, bad: float
) -> None:
    play = make_round(5)
    sealed = play.until_mask()
    with pytest.raises(DataError, match="nothing leaves"):
        play.clients[2].mask(torch.full((6,), bad), sealed[2])
    with pytest.raises(AggregationError, match="client 2: asked for mask, but it has left the round"):
        play.clients[2].mask(play.updates[2], sealed[2])
    survivors = play.server.survivors(play.masked(sealed, lost=[2]))
    kept = [0, 1, 3, 4]
    signatures = play.server.signatures({c: play.clients[c].confirm(survivors) for c in kept})
    got = play.server.aggregate({c: play.clients[c].unmask(signatures) for c in kept})
    assert torch.allclose(got.mean, play.updates[kept].double().mean(0), atol=1e-9, rtol=0)


def test_a_wrong_weight_or_shape_is_refused(make_round: Make) -> None:
    play = make_round(3, 2, max_weight=5)
    sealed = play.until_mask()
    with pytest.raises(SettingError, match=r"weight = 6: expected an integer in \[1, 5\]"):
        play.clients[0].mask(play.updates[0], sealed[0], 6)
    with pytest.raises(DataError, match=r"update: expected a tensor of shape \[6\]; nothing leaves"):
        play.clients[1].mask(torch.zeros(7), sealed[1])


KNOWN = {c: bytes([c + 1]) * 32 for c in range(4)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"session": ""}, "session = '': expected a text that is not empty"),
        ({"round": -1}, "round = -1: expected an integer in [0, 18446744073709551615]"),
        ({"size": 0}, "size = 0: expected an integer in [1, 4294967296]"),
        ({"threshold": 2}, "threshold = 2: expected an integer in [3, 4]"),
        ({"threshold": 5}, "threshold = 5: expected an integer in [3, 4]"),
        ({"max_weight": 0}, "max_weight = 0: expected an integer in [1, 4503599627370496]"),
        ({"identities": {}}, "identities = {}: expected the public keys of 2 clients or more, by id"),
        ({"identities": KNOWN | {-1: b""}}, "client = -1: expected an integer in [0, 18446744073709551615]"),
        (
            {"identities": KNOWN | {9: b"x"}},
            "identities[9] = b'x': expected 32 bytes, an Ed25519 public key",
        ),
        (
            {"identities": KNOWN | {9: KNOWN[0]}},
            "identities = 'the same key twice': expected a key for each client",
        ),
        ({"order": b"abc"}, "order = b'abc': expected 32 bytes, a digest, or none"),
        (
            {"max_weight": 2**30},
            "fraction_bits = 32: 4 clients × weight 1073741824 × bound 64 would wrap modulo 2^64; "
            "use fraction_bits ≤ 24",
        ),
    ],
)
def test_a_wrong_setting_is_one_line(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        Agreement(**({"session": "a", "round": 1, "identities": KNOWN, "size": 4} | settings))
    assert str(caught.value) == message


def test_a_client_is_one_of_the_round_and_has_its_key() -> None:
    identity = Identity.generate()
    agreement = Agreement("a", 1, KNOWN | {9: identity.public}, size=4)
    SecureClient(agreement, 9, identity)
    with pytest.raises(SettingError, match="client = 8: expected one of 0, 1, 2, 3, 9"):
        SecureClient(agreement, 8, identity)
    with pytest.raises(SettingError, match="expected the key that the agreement has of client 1"):
        SecureClient(agreement, 1, identity)


def test_ids_may_be_as_large_as_flowers() -> None:
    identities = {c: Identity.generate() for c in (2**64 - 1, 5, 2**63)}
    known = {c: identity.public for c, identity in identities.items()}
    assert list(Agreement("a", 1, known, size=4).identities) == [5, 2**63, 2**64 - 1]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"session": "b"}, False),
        ({"round": 2}, False),
        ({"size": 5}, False),
        ({"threshold": 4}, False),
        ({"max_weight": 2}, False),
        ({"encoding": FixedPoint(32)}, False),
        ({"encoding": FixedPoint(64, 31)}, False),
        ({"encoding": FixedPoint(4, 20, 32)}, False),
        ({"identities": KNOWN | {3: b"9" * 32}}, False),
        ({"order": b"1" * 32}, False),
    ],
)
def test_the_context_depends_on_every_setting(change: dict[str, Any], same: bool) -> None:
    base = {"session": "a", "round": 1, "identities": KNOWN, "size": 4, "threshold": 3}
    assert (Agreement(**base).context == Agreement(**(base | change)).context) == same


def test_bad_calls_of_a_whole_round() -> None:
    updates = torch.zeros(3, 2)
    for call, message in [
        (lambda: secure_mean(updates[0]), r"updates: expected a tensor \[n, N\]"),
        (lambda: secure_mean(updates, [1]), r"weights = \[1\]: expected 3 integers, one for each client"),
        (lambda: secure_mean(updates, [1, 1, 0]), "weight = 0: expected an integer ≥ 1"),
        (lambda: secure_mean(updates, lost={5: "mask"}), r"lost = 5: expected an integer in \[0, 2\]"),
        (lambda: secure_mean(updates, lost={1: "lunch"}), r"lost\[1\] = 'lunch': expected one of"),
    ]:
        with pytest.raises((DataError, SettingError), match=message):
            call()


def test_a_large_vector_wraps_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        updates = torch.full((3, 300_000), -64.0)
        assert (secure_mean(updates).mean == -64).all()
