"""What a server sees of a single client: uniform bytes, whatever the update."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from refiner.federation.secure import FixedPoint
from refiner.federation.secure.masks import add_pair_mask, pair_key

Make = Callable[..., Any]
SIZE = 40_000
# χ² of 255 degrees of freedom is above this once in ten million times.
LIMIT = 390.0


def chi_square(raw: bytes) -> float:
    """Of the bytes against uniform ones."""
    counts = np.bincount(np.frombuffer(raw, dtype=np.uint8), minlength=256)
    expected = len(raw) / 256
    return float(((counts - expected) ** 2 / expected).sum())


def masked_by(play: Any, update: torch.Tensor) -> bytes:
    play.updates = update.expand(len(play.clients), -1)
    return bytes(play.masked(play.until_mask())[0]["masked"])


@pytest.mark.parametrize("modulus_bits", [32, 64])
@pytest.mark.parametrize("kind", ["zero", "constant", "gradient"])
def test_a_masked_vector_is_uniform_whatever_the_update(
    make_round: Make, modulus_bits: int, kind: str
) -> None:
    encoding = FixedPoint(bound=8, fraction_bits=20, modulus_bits=modulus_bits)
    update = {
        "zero": torch.zeros(SIZE),
        "constant": torch.full((SIZE,), 7.5),
        "gradient": 0.01 * torch.randn(SIZE),
    }[kind]
    # The control: without masks the same test sees that the bytes are not uniform.
    assert chi_square(encoding.encode(update).tobytes()) > 100 * LIMIT
    assert chi_square(masked_by(make_round(3, 2, size=SIZE, encoding=encoding), update)) < LIMIT


def test_a_masked_vector_does_not_depend_on_the_update(make_round: Make) -> None:
    update = 60 * (2 * torch.rand(SIZE) - 1)
    raw = masked_by(make_round(3, 2, size=SIZE), update)
    values = np.frombuffer(raw, dtype="<u8")[:-1]
    # As the attacker would read them: signed, or bit by bit.
    signs = update.sign().numpy()
    for bit in (0, 8, 31, 32, 37, 62, 63):
        seen = ((values >> np.uint64(bit)) & np.uint64(1)).astype(float) - 0.5
        assert abs(np.corrcoef(seen, signs)[0, 1]) < 6 / SIZE**0.5
    assert abs(np.corrcoef(values.view("<i8").astype(float), update.numpy())[0, 1]) < 6 / SIZE**0.5


def test_the_same_update_is_masked_anew_every_round(make_round: Make) -> None:
    update = torch.randn(SIZE)
    first = make_round(3, 2, size=SIZE)
    second = make_round(3, 2, size=SIZE, number=2, identities=first.identities)
    one, other = (np.frombuffer(masked_by(play, update), dtype="<u8") for play in (first, second))
    assert chi_square((one - other).tobytes()) < LIMIT


def test_a_late_vector_stays_masked_when_its_pair_masks_are_lifted(make_round: Make) -> None:
    # Client 0 is declared lost, so its mask key is given away; then its vector arrives, with its own mask on.
    play = make_round(4, size=SIZE)
    secret = play.clients[0]._held.secrets[1]
    vector = np.frombuffer(masked_by(play, torch.zeros(SIZE)), dtype="<u8").copy()
    for other in range(1, 4):
        public = play.clients[0]._held.adverts[other].masking
        add_pair_mask(vector, pair_key(play.agreement.context, secret, 0, other, public), 0, other, undo=True)
    assert chi_square(vector.tobytes()) < LIMIT


def test_nothing_else_that_a_client_sends_depends_on_its_update(make_round: Make) -> None:
    play = make_round(3, 2, size=SIZE)
    keys = play.server.keys(play.adverts())
    sealed = play.server.relay(play.shares(keys))
    survivors = play.server.survivors(play.masked(sealed))
    confirmed = {c: play.clients[c].confirm(survivors) for c in range(3)}
    revealed = {c: play.clients[c].unmask(play.server.signatures(confirmed)) for c in [0]}
    # They are of fixed length, far shorter than the update, and made without it.
    for message in (keys, confirmed[0], revealed[0], sealed[0]):
        assert sum(map(len, message.values())) < 1000
