"""The settings of a round: each is validated, and the context depends on all of them."""

from typing import Any

import pytest

from refiner.errors import SettingError
from refiner.federation.secure import FixedPoint, Identity, RoundConfig

PUBLIC_KEYS = {c: bytes([c + 1]) * 32 for c in range(4)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"session": ""}, "session = '': expected a string that is not empty"),
        ({"round": -1}, "round = -1: expected an integer in [0, 18446744073709551615]"),
        ({"size": 0}, "size = 0: expected an integer in [1, 4294967296]"),
        ({"threshold": 2}, "threshold = 2: expected an integer in [3, 4]"),
        ({"threshold": 5}, "threshold = 5: expected an integer in [3, 4]"),
        ({"max_weight": 0}, "max_weight = 0: expected an integer in [1, 4503599627370496]"),
        ({"identities": {}}, "identities = {}: expected the public keys of at least 2 clients, by client id"),
        (
            {"identities": PUBLIC_KEYS | {-1: b""}},
            "client = -1: expected an integer in [0, 18446744073709551615]",
        ),
        (
            {"identities": PUBLIC_KEYS | {9: b"x"}},
            "identities[9] = b'x': expected 32 bytes, an Ed25519 public key",
        ),
        (
            {"identities": PUBLIC_KEYS | {9: PUBLIC_KEYS[0]}},
            "identities = 'the same key twice': expected a different key for each client",
        ),
        ({"instructions_digest": b"abc"}, "instructions_digest = b'abc': expected 32 bytes or none"),
        (
            {"max_weight": 2**30},
            "fraction_bits = 32: 4 clients × weight 1073741824 × bound 64 would wrap modulo 2^64; "
            "use fraction_bits ≤ 24",
        ),
    ],
)
def test_a_wrong_setting_raises_a_one_line_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        RoundConfig(**({"session": "a", "round": 1, "identities": PUBLIC_KEYS, "size": 4} | settings))
    assert str(caught.value) == message


def test_client_ids_may_have_64_bits() -> None:
    identities = {c: Identity.generate() for c in (2**64 - 1, 5, 2**63)}
    public_keys = {c: identity.public for c, identity in identities.items()}
    assert list(RoundConfig("a", 1, public_keys, size=4).identities) == [5, 2**63, 2**64 - 1]


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
        ({"identities": PUBLIC_KEYS | {3: b"9" * 32}}, False),
        ({"instructions_digest": b"1" * 32}, False),
    ],
)
def test_the_context_depends_on_every_setting(change: dict[str, Any], same: bool) -> None:
    base = {"session": "a", "round": 1, "identities": PUBLIC_KEYS, "size": 4, "threshold": 3}
    assert (RoundConfig(**base).context == RoundConfig(**(base | change)).context) == same
