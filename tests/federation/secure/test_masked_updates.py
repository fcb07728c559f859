"""The masked update of a single client is uniformly distributed, whatever the update."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from refiner.federation.secure import FixedPoint
from refiner.federation.secure.masks import add_pairwise_mask, pairwise_mask_key

Make = Callable[..., Any]
SIZE = 40_000
# χ² of 255 degrees of freedom is above this once in ten million times.
LIMIT = 390.0


def chi_square(raw: bytes) -> float:
    """The χ² statistic of the bytes against the uniform distribution."""
    counts = np.bincount(np.frombuffer(raw, dtype=np.uint8), minlength=256)
    expected = len(raw) / 256
    return float(((counts - expected) ** 2 / expected).sum())


def masked_by(run: Any, update: torch.Tensor) -> bytes:
    run.updates = update.expand(len(run.clients), -1)
    return bytes(run.mask_updates(run.until_mask())[0]["masked"])


@pytest.mark.parametrize("modulus_bits", [32, 64])
@pytest.mark.parametrize("kind", ["zero", "constant", "gradient"])
def test_a_masked_update_is_uniform_whatever_the_update(
    make_round: Make, modulus_bits: int, kind: str
) -> None:
    encoding = FixedPoint(bound=8, fraction_bits=20, modulus_bits=modulus_bits)
    update = {
        "zero": torch.zeros(SIZE),
        "constant": torch.full((SIZE,), 7.5),
        "gradient": 0.01 * torch.randn(SIZE),
    }[kind]
    # Without masks the same statistic shows that the bytes are not uniform.
    assert chi_square(encoding.encode(update).tobytes()) > 100 * LIMIT
    assert chi_square(masked_by(make_round(3, 2, size=SIZE, encoding=encoding), update)) < LIMIT


def test_a_masked_update_is_uncorrelated_with_the_update(make_round: Make) -> None:
    update = 60 * (2 * torch.rand(SIZE) - 1)
    raw = masked_by(make_round(3, 2, size=SIZE), update)
    values = np.frombuffer(raw, dtype="<u8")[:-1]
    # Read as signed integers, or bit by bit.
    signs = update.sign().numpy()
    for bit in (0, 8, 31, 32, 37, 62, 63):
        bits = ((values >> np.uint64(bit)) & np.uint64(1)).astype(float) - 0.5
        assert abs(np.corrcoef(bits, signs)[0, 1]) < 6 / SIZE**0.5
    assert abs(np.corrcoef(values.view("<i8").astype(float), update.numpy())[0, 1]) < 6 / SIZE**0.5


def test_the_same_update_has_independent_masks_in_every_round(make_round: Make) -> None:
    update = torch.randn(SIZE)
    first = make_round(3, 2, size=SIZE)
    second = make_round(3, 2, size=SIZE, number=2, identities=first.identities)
    one, two = (np.frombuffer(masked_by(run, update), dtype="<u8") for run in (first, second))
    assert chi_square((one - two).tobytes()) < LIMIT


def test_a_late_update_keeps_its_self_mask_when_its_pairwise_masks_are_removed(make_round: Make) -> None:
    # Client 0 counts as dropped out, so its masking secret is recovered; then its masked update arrives.
    run = make_round(4, size=SIZE)
    secret = run.clients[0]._state.secrets[1]
    vector = np.frombuffer(masked_by(run, torch.zeros(SIZE)), dtype="<u8").copy()
    for other in range(1, 4):
        public = run.clients[0]._state.advertisements[other].masking_key
        add_pairwise_mask(
            vector, pairwise_mask_key(run.config.context, secret, 0, other, public), 0, other, undo=True
        )
    assert chi_square(vector.tobytes()) < LIMIT


def test_all_other_messages_are_short_and_made_without_the_update(make_round: Make) -> None:
    run = make_round(3, 2, size=SIZE)
    keys = run.server.collect_keys(run.advertise_keys())
    shares = run.server.collect_shares(run.share_keys(keys))
    survivors = run.server.collect_masked_updates(run.mask_updates(shares))
    confirmed = {c: run.clients[c].confirm_survivors(survivors) for c in range(3)}
    revealed = {c: run.clients[c].unmask(run.server.collect_signatures(confirmed)) for c in [0]}
    # They have a fixed length, far shorter than the update.
    for message in (keys, confirmed[0], revealed[0], shares[0]):
        assert sum(map(len, message.values())) < 1000
