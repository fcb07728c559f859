"""What the protocol asks of its primitives."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refiner.errors import RefinerError
from refiner.federation.secure import AggregationError, Identity, primitives

PART = st.one_of(st.text(max_size=4), st.binary(max_size=4), st.integers(0, 2**64 - 1))


@given(st.lists(PART, max_size=4), st.lists(PART, max_size=4))
def test_different_parts_are_packed_differently(one: list[str], other: list[str]) -> None:
    assert (primitives.pack(*one) == primitives.pack(*other)) == (one == other)


def test_the_public_key_is_that_of_rfc_7748() -> None:
    secret = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    public = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert primitives.public_key(secret).hex() == public


def test_both_sides_agree_and_only_on_the_same_purpose() -> None:
    one, other = primitives.draw_secret(), primitives.draw_secret()
    agreed = primitives.agree(one, primitives.public_key(other), b"round", "mask", 1)
    assert agreed == primitives.agree(other, primitives.public_key(one), b"round", "mask", 1)
    assert agreed != primitives.agree(other, primitives.public_key(one), b"round", "mask", 2)
    assert agreed != primitives.agree(other, primitives.public_key(one), b"other", "mask", 1)


def test_two_names_of_one_public_key_are_two_keys() -> None:
    # X25519 ignores the top bit, so both give the same point.
    secret, public = primitives.draw_secret(), primitives.public_key(primitives.draw_secret())
    alias = public[:-1] + bytes([public[-1] ^ 0x80])
    assert primitives.agree(secret, public, b"round") != primitives.agree(secret, alias, b"round")


def test_a_public_key_of_low_order_is_refused() -> None:
    with pytest.raises(AggregationError, match="gives no secret"):
        primitives.agree(primitives.draw_secret(), bytes(32), b"round", "mask")


def test_any_t_shares_give_the_secret_and_fewer_do_not() -> None:
    secret = primitives.draw_secret()
    shares = primitives.split(secret, 3, 5)
    assert [primitives.place_of(share) for share in shares] == [1, 2, 3, 4, 5]
    assert {len(share) for share in shares} == {primitives.SHARE_BYTES}
    assert primitives.join([shares[4], shares[0], shares[2]]) == secret
    assert primitives.join(shares[:2]) != secret
    assert primitives.join([shares[0], shares[0], shares[1]]) is None


def test_what_is_sealed_opens_only_as_it_was_sealed() -> None:
    key = primitives.draw_secret()
    sealed = primitives.seal(key, b"shares", "about", 1, 2)
    assert primitives.unseal(key, sealed, "about", 1, 2) == b"shares"
    assert primitives.unseal(key, sealed, "about", 2, 1) is None
    assert primitives.unseal(primitives.draw_secret(), sealed, "about", 1, 2) is None
    assert primitives.unseal(key, sealed[:5], "about", 1, 2) is None
    assert primitives.seal(key, b"shares", "about", 1, 2) != sealed


def test_a_signature_is_of_its_parts_and_signer() -> None:
    identity = Identity.generate()
    signature = identity.sign("round", 1)
    assert primitives.signed_by(identity.public, signature, "round", 1)
    assert not primitives.signed_by(identity.public, signature, "round", 2)
    assert not primitives.signed_by(Identity.generate().public, signature, "round", 1)
    assert not primitives.signed_by(identity.public, b"", "round", 1)


def test_an_identity_does_not_show_its_secret() -> None:
    identity = Identity.generate()
    assert identity.secret().hex() not in repr(identity)


@pytest.mark.parametrize(
    ("module", "call", "package"),
    [
        ("flwr.common.secure_aggregation.crypto.shamir", lambda: primitives.split(bytes(32), 2, 3), "flwr"),
        (
            "cryptography.hazmat.primitives.kdf.hkdf",
            lambda: primitives.derive(bytes(32), b""),
            "cryptography",
        ),
    ],
)
def test_a_missing_extra_is_one_line(
    module: str, call: object, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RefinerError) as caught:
        call()  # type: ignore[operator]
    assert str(caught.value) == f"secure aggregation needs {package}: pip install 'refiner[flower]'"
