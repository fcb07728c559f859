"""Keys, signatures and authenticated encryption, all from the package `cryptography`.

X25519 and HKDF-SHA256 for keys, Ed25519 for signatures, ChaCha20-Poly1305 to encrypt shares. Keys and secrets
are plain bytes, so that a client's state can be stored between the messages of a round.
"""

import os
from hashlib import sha256

from refiner.federation.secure.errors import AggregationError
from refiner.federation.secure.extra import secure_extra

SECRET_BYTES = 32
DIGEST_BYTES = 32
SIGNATURE_BYTES = 64
_NONCE_BYTES, _TAG_BYTES = 12, 16
ENCRYPTION_OVERHEAD = _NONCE_BYTES + _TAG_BYTES
"""Bytes by which a ciphertext is longer than its plaintext."""


def encode_parts(*parts: str | int | bytes) -> bytes:
    """Encode values injectively: what is signed, hashed or authenticated must not be ambiguous.

    >>> encode_parts("ab", "c") == encode_parts("a", "bc")
    False
    """
    encoded = bytearray()
    for part in parts:
        kind, body = _encode_part(part)
        encoded += kind + len(body).to_bytes(8, "big") + body
    return bytes(encoded)


def _encode_part(part: str | int | bytes) -> tuple[bytes, bytes]:
    if isinstance(part, int):
        return b"i", part.to_bytes(8, "big")
    return (b"s", part.encode()) if isinstance(part, str) else (b"b", part)


def digest(*parts: str | int | bytes) -> bytes:
    """SHA-256 of the encoded parts."""
    hasher = sha256()
    for part in parts:  # one by one, as a part may be a whole model
        hasher.update(encode_parts(part))
    return hasher.digest()


def draw_secret() -> bytes:
    """32 bytes of the operating system's entropy; every such string is an X25519 or Ed25519 private key."""
    return os.urandom(SECRET_BYTES)


def public_key(secret: bytes) -> bytes:
    """The X25519 public key of a secret."""
    with secure_extra():
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def derive(secret: bytes, context: bytes, *purpose: str | int | bytes) -> bytes:
    """Derive a key for one purpose in one context with HKDF-SHA256."""
    with secure_extra():
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    return HKDF(SHA256(), SECRET_BYTES, salt=context, info=encode_parts(*purpose)).derive(secret)


def shared_key(secret: bytes, public: bytes, context: bytes, *purpose: str | int | bytes) -> bytes:
    """Derive the key that the owner of `secret` shares with the owner of the public key `public` (X25519).

    X25519 does not bind the public keys (several give the same point), so both are inputs of the derivation.

    >>> alice, bob, purpose = draw_secret(), draw_secret(), ("mask", 1, 2)
    >>> key = shared_key(alice, public_key(bob), b"round 1", *purpose)
    >>> key == shared_key(bob, public_key(alice), b"round 1", *purpose)
    True
    """
    with secure_extra():
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    private = X25519PrivateKey.from_private_bytes(secret)
    public_of_secret = private.public_key().public_bytes_raw()
    try:
        point = private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of low order: anybody could compute the shared key
        raise AggregationError("public key: of low order, the shared key would not be secret") from None
    return derive(point, context, *purpose, *sorted((public_of_secret, public)))


def signing_public_key(secret: bytes) -> bytes:
    """The Ed25519 public key of a secret."""
    with secure_extra():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    return Ed25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def sign(secret: bytes, *parts: str | int | bytes) -> bytes:
    """Sign the encoded parts with Ed25519."""
    with secure_extra():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    return Ed25519PrivateKey.from_private_bytes(secret).sign(encode_parts(*parts))


def verify_signature(public: bytes, signature: bytes, *parts: str | int | bytes) -> bool:
    """Whether `signature` is a signature of these parts by the owner of the public key `public`."""
    with secure_extra():
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, encode_parts(*parts))
    except (InvalidSignature, ValueError):
        return False
    return True


def encrypt(key: bytes, plaintext: bytes, *associated: str | int | bytes) -> bytes:
    """Encrypt with ChaCha20-Poly1305 and authenticate the associated data; returns nonce and ciphertext.

    The nonce is random although each key encrypts once: a client restored from an old state repeats none.
    """
    with secure_extra():
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    nonce = os.urandom(_NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plaintext, encode_parts(*associated))


def decrypt(key: bytes, ciphertext: bytes, *associated: str | int | bytes) -> bytes | None:
    """Decrypt what `encrypt` returned; None if the key, ciphertext or associated data are different ones."""
    with secure_extra():
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    nonce, body = ciphertext[:_NONCE_BYTES], ciphertext[_NONCE_BYTES:]
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, body, encode_parts(*associated))
    except (InvalidTag, ValueError):
        return None
