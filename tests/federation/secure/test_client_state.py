"""A client continues from its stored state, which has no secrets after the round."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refiner.federation.secure import AggregationError, SecureClient

MakeRound = Callable[..., Any]


def test_a_client_continues_in_another_process(make_round: MakeRound) -> None:
    run = make_round(4)

    def restore_all() -> None:
        for c, client in run.clients.items():
            state = client.state()
            run.clients[c] = SecureClient.restore(run.config, c, run.identities[c], state)

    advertised = run.advertise_keys()
    restore_all()
    shared = run.share_keys(run.server.collect_keys(advertised))
    restore_all()
    masked = run.mask_updates(run.server.collect_shares(shared), dropouts=[1])
    restore_all()
    survivors = run.server.collect_masked_updates(masked)
    confirmed = {c: run.clients[c].confirm_survivors(survivors) for c in masked}
    restore_all()
    signatures = run.server.collect_signatures(confirmed)
    revealed = {c: run.clients[c].unmask(signatures) for c in masked}
    restore_all()
    result = run.server.aggregate(revealed)
    assert torch.allclose(result.mean, run.updates[[0, 2, 3]].double().mean(0), atol=1e-9, rtol=0)
    with pytest.raises(AggregationError, match="asked for unmask, but its next step is done"):
        run.clients[0].unmask(signatures)


def test_the_state_after_the_round_contains_no_secret(make_round: MakeRound) -> None:
    run = make_round(3, None)
    secrets = [secret.hex() for secret in run.clients[0]._state.secrets]
    assert all(secret in run.clients[0].state().decode() for secret in secrets)
    run.clients[0].unmask(run.until_unmask())
    assert run.clients[0].step == "done"
    assert not any(secret in run.clients[0].state().decode() for secret in secrets)
    assert '"shares": {}' in run.clients[0].state().decode()


def test_a_state_of_another_round_or_client_is_rejected(make_round: MakeRound) -> None:
    first = make_round(3, 2)
    second = make_round(3, 2, number=2, identities=first.identities)
    state = first.clients[0].state()
    for config, c in ((second.config, 0), (first.config, 1)):
        with pytest.raises(AggregationError, match="of another client, session, round or settings"):
            SecureClient.restore(config, c, first.identities[c], state)
    for broken in (b"", b"{}", b"[]", state[:-9], state.replace(b'"advertise"', b'"mask?"')):
        with pytest.raises(AggregationError, match=r"^state of client 0: "):
            SecureClient.restore(first.config, 0, first.identities[0], broken)
