"""The properties that the protocol needs of its cryptographic primitives."""

import sys
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refiner.errors import RefinerError
from refiner.federation.secure import AggregationError, Identity, primitives
from refiner.federation.secure.secret_sharing import combine_shares, share_secret

PART = st.one_of(st.text(max_size=4), st.binary(max_size=4), st.integers(0, 2**64 - 1))


@given(st.lists(PART, max_size=4), st.lists(PART, max_size=4))
def test_different_parts_are_encoded_differently(first: list[str], second: list[str]) -> None:
    same = primitives.encode_parts(*first) == primitives.encode_parts(*second)
    assert same == (first == second)


def test_the_digest_is_that_of_the_encoded_parts() -> None:
    from hashlib import sha256

    encoded = b"s" + (1).to_bytes(8, "big") + b"a" + b"i" + (8).to_bytes(8, "big") + (7).to_bytes(8, "big")
    assert primitives.digest("a", 7) == sha256(encoded).digest()


def test_the_public_key_is_that_of_rfc_7748() -> None:
    secret = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    public = "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert primitives.public_key(secret).hex() == public


def test_both_clients_derive_the_same_key_for_the_same_purpose_only() -> None:
    alice, bob = primitives.draw_secret(), primitives.draw_secret()
    key = primitives.shared_key(alice, primitives.public_key(bob), b"round", "mask", 1)
    assert key == primitives.shared_key(bob, primitives.public_key(alice), b"round", "mask", 1)
    assert key != primitives.shared_key(bob, primitives.public_key(alice), b"round", "mask", 2)
    assert key != primitives.shared_key(bob, primitives.public_key(alice), b"other", "mask", 1)


def test_two_encodings_of_one_public_key_give_different_keys() -> None:
    # X25519 ignores the top bit, so both encodings give the same point.
    secret, public = primitives.draw_secret(), primitives.public_key(primitives.draw_secret())
    alias = public[:-1] + bytes([public[-1] ^ 0x80])
    assert primitives.shared_key(secret, public, b"round") != primitives.shared_key(secret, alias, b"round")


def test_a_public_key_of_low_order_is_rejected() -> None:
    with pytest.raises(AggregationError, match="public key: of low order"):
        primitives.shared_key(primitives.draw_secret(), bytes(32), b"round", "mask")


def test_decryption_needs_the_same_key_ciphertext_and_associated_data() -> None:
    key = primitives.draw_secret()
    ciphertext = primitives.encrypt(key, b"shares", "about", 1, 2)
    assert len(ciphertext) == len(b"shares") + primitives.ENCRYPTION_OVERHEAD
    assert primitives.decrypt(key, ciphertext, "about", 1, 2) == b"shares"
    assert primitives.decrypt(key, ciphertext, "about", 2, 1) is None
    assert primitives.decrypt(primitives.draw_secret(), ciphertext, "about", 1, 2) is None
    assert primitives.decrypt(key, ciphertext[:5], "about", 1, 2) is None
    assert primitives.encrypt(key, b"shares", "about", 1, 2) != ciphertext


def test_a_signature_is_valid_for_its_parts_and_signer_only() -> None:
    identity = Identity.generate()
    signature = identity.sign("round", 1)
    assert primitives.verify_signature(identity.public, signature, "round", 1)
    assert not primitives.verify_signature(identity.public, signature, "round", 2)
    assert not primitives.verify_signature(Identity.generate().public, signature, "round", 1)
    assert not primitives.verify_signature(identity.public, b"", "round", 1)


def test_the_repr_of_an_identity_does_not_contain_its_secret() -> None:
    identity = Identity.generate()
    assert identity.secret().hex() not in repr(identity)


@pytest.mark.parametrize(
    ("module", "call", "package"),
    [
        ("Crypto.Protocol.SecretSharing", lambda: share_secret(bytes(32), 2, 3), "pycryptodome"),
        ("Crypto.Protocol.SecretSharing", lambda: combine_shares([b"\1" + bytes(51)]), "pycryptodome"),
        ("cryptography.hazmat.primitives.kdf.hkdf", lambda: primitives.derive(b"", b""), "cryptography"),
    ],
)
def test_a_missing_package_raises_an_error_with_the_install_line(
    module: str, call: Callable[[], object], package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RefinerError) as caught:
        call()
    assert str(caught.value) == f"secure aggregation needs {package}: pip install 'refiner-fl[secure]'"


def test_flower_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from refiner.federation.secure import secure_mean

    monkeypatch.setitem(sys.modules, "flwr", None)
    assert secure_mean(torch.tensor([[1.0], [3.0]])).mean.tolist() == [2.0]
