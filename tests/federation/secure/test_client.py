"""A client checks its id, key, update and weight, and sends nothing if one is wrong."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from refiner.errors import DataError, SettingError
from refiner.federation.secure import AggregationError, Identity, RoundConfig, SecureClient

MakeRound = Callable[..., Any]


def test_a_client_whose_update_is_rejected_sends_nothing_and_the_others_continue(
    make_round: MakeRound,
) -> None:
    run = make_round(5)
    shares = run.until_mask()
    with pytest.raises(DataError, match="nothing was sent"):
        run.clients[2].mask_update(torch.zeros(7), shares[2])
    with pytest.raises(AggregationError, match="client 2: asked for mask, but it has left the round"):
        run.clients[2].mask_update(run.updates[2], shares[2])
    message = run.server.collect_masked_updates(run.mask_updates(shares, dropouts=[2]))
    survivors = [0, 1, 3, 4]
    signatures = run.server.collect_signatures(
        {c: run.clients[c].confirm_survivors(message) for c in survivors}
    )
    result = run.server.aggregate({c: run.clients[c].unmask(signatures) for c in survivors})
    assert torch.allclose(result.mean, run.updates[survivors].double().mean(0), atol=1e-9, rtol=0)


def test_a_wrong_weight_or_shape_is_rejected(make_round: MakeRound) -> None:
    run = make_round(3, 2, max_weight=5)
    shares = run.until_mask()
    with pytest.raises(SettingError, match=r"weight = 6: expected an integer in \[1, 5\]"):
        run.clients[0].mask_update(run.updates[0], shares[0], 6)
    with pytest.raises(DataError, match=r"update: expected a tensor of shape \[6\]; nothing was sent"):
        run.clients[1].mask_update(torch.zeros(7), shares[1])


def test_a_client_must_be_in_the_round_and_have_its_key() -> None:
    identity = Identity.generate()
    public_keys = {c: bytes([c + 1]) * 32 for c in range(4)} | {9: identity.public}
    config = RoundConfig("a", 1, public_keys, size=4)
    SecureClient(config, 9, identity)
    with pytest.raises(SettingError, match="client = 8: expected one of 0, 1, 2, 3, 9"):
        SecureClient(config, 8, identity)
    with pytest.raises(SettingError, match="expected the key listed for client 1") as caught:
        SecureClient(config, 1, identity)
    assert not isinstance(caught.value.value, Identity)  # it would carry the private key
