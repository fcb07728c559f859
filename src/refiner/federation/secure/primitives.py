"""The cryptography, all of it other people's: Shamir's sharing from Flower, the rest from `cryptography`.

X25519 and HKDF-SHA256 for keys, Ed25519 for signatures, ChaCha20-Poly1305 for shares on their way. Keys and
secrets are bytes here, so that a client's state can be kept between the messages of a round.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from refiner.errors import RefinerError
from refiner.federation.secure.errors import AggregationError

SECRET_BYTES = 32
DIGEST_BYTES = 32
SIGNATURE_BYTES = 64
SHARE_BYTES = 52
"""Of a shared secret: 4 for its place, 3 × 16 for the secret and its padding."""
SEALED_MORE = 12 + 16
"""Bytes that sealing adds: nonce and tag."""


@contextmanager
def extra() -> Iterator[None]:
    """Around an import from the extra: what is missing becomes one line."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "flwr").split(".")[0]
        raise RefinerError(f"secure aggregation needs {package}: pip install 'refiner[flower]'") from None


def pack(*parts: str | int | bytes) -> bytes:
    """Parts as one text that no other parts have: what is signed, hashed and bound must not be ambiguous.

    >>> pack("ab", "c") == pack("a", "bc")
    False
    """
    packed = bytearray()
    for part in parts:
        kind, body = _body(part)
        packed += kind + len(body).to_bytes(8, "big") + body
    return bytes(packed)


def _body(part: str | int | bytes) -> tuple[bytes, bytes]:
    if isinstance(part, int):
        return b"i", part.to_bytes(8, "big")
    return (b"s", part.encode()) if isinstance(part, str) else (b"b", part)


def digest(*parts: str | int | bytes) -> bytes:
    """SHA-256 of the packed parts."""
    with extra():
        from cryptography.hazmat.primitives.hashes import SHA256, Hash
    hasher = Hash(SHA256())
    for part in parts:  # one by one, as a part may be a whole model
        hasher.update(pack(part))
    return hasher.finalize()


def draw_secret() -> bytes:
    """32 bytes of the operating system's entropy; every such string is an X25519 or Ed25519 private key."""
    return os.urandom(SECRET_BYTES)


def public_key(secret: bytes) -> bytes:
    """The X25519 public key of a secret."""
    with extra():
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def derive(secret: bytes, context: bytes, *about: str | int | bytes) -> bytes:
    """HKDF-SHA256: a key from a secret for one purpose in one context."""
    with extra():
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    return HKDF(SHA256(), SECRET_BYTES, salt=context, info=pack(*about)).derive(secret)


def agree(secret: bytes, public: bytes, context: bytes, *about: str | int | bytes) -> bytes:
    """The key that the holder of `secret` has with the holder of the secret behind `public`.

    X25519 alone does not bind the public keys (several give the same point), so both are derived from, too.

    >>> one, other, about = draw_secret(), draw_secret(), ("mask", 1, 2)
    >>> agree(one, public_key(other), b"round 1", *about) == agree(other, public_key(one), b"round 1", *about)
    True
    """
    with extra():
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    private = X25519PrivateKey.from_private_bytes(secret)
    own = private.public_key().public_bytes_raw()
    try:
        point = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of low order: the key would be known to everybody
        raise AggregationError("public key: gives no secret with any key") from None
    return derive(point, context, *about, *sorted((own, public)))


def signing_public(secret: bytes) -> bytes:
    """The Ed25519 public key of a secret."""
    with extra():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def sign(secret: bytes, *parts: str | int | bytes) -> bytes:
    """An Ed25519 signature of the packed parts."""
    with extra():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    return Ed25519PrivateKey.from_private_bytes(secret).sign(pack(*parts))


def signed_by(public: bytes, signature: bytes, *parts: str | int | bytes) -> bool:
    """Whether the holder of the secret behind `public` signed these parts."""
    with extra():
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, pack(*parts))
    except (InvalidSignature, ValueError):
        return False
    return True


def seal(key: bytes, text: bytes, *about: str | int | bytes) -> bytes:
    """`text` encrypted with ChaCha20-Poly1305, bound to `about`.

    The nonce is drawn although each key seals once: a client that was put back and asked again repeats none.
    """
    with extra():
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    nonce = os.urandom(12)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, text, pack(*about))


def unseal(key: bytes, sealed: bytes, *about: str | int | bytes) -> bytes | None:
    """What was sealed, or None if key, text or `about` are not those of the sealing."""
    with extra():
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:12], sealed[12:], pack(*about))
    except (InvalidTag, ValueError):
        return None


def split(secret: bytes, threshold: int, places: int) -> list[bytes]:
    """Shares of a secret, the one for place i beginning with i (from 1); `threshold` of them give it back."""
    with extra():
        from flwr.common.secure_aggregation.crypto.shamir import create_shares
    return create_shares(secret, threshold, places)


def place_of(share: bytes) -> int:
    """The place that a share was made for."""
    return int.from_bytes(share[:4], "little")


def join(shares: Sequence[bytes]) -> bytes | None:
    """The secret of exactly `threshold` shares, or None if they do not fit together."""
    with extra():
        from flwr.common.secure_aggregation.crypto.shamir import combine_shares
    try:
        secret = combine_shares(list(shares))
    except ValueError:
        return None
    return secret if len(secret) == SECRET_BYTES else None
