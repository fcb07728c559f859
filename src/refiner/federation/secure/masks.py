"""Masks: a key's ChaCha20 stream, read as whole numbers and added to a vector."""

import numpy as np

from refiner.federation.secure.fixedpoint import Ring
from refiner.federation.secure.primitives import agree, derive, extra

# Fits a cache beside the vector's own part; smaller is slower for the calls.
_CHUNK = 1 << 20


def add_mask(vector: Ring, key: bytes, *, subtract: bool = False) -> None:
    """Add the stream of `key` to `vector` in place, or subtract it; modulo 2^32 or 2^64 as its dtype is.

    A key is derived for one mask of one round, so the nonce is 0 and the counter starts at 0 (RFC 8439).

    >>> vector = np.arange(3, dtype="<u8")
    >>> add_mask(vector, b"k" * 32)
    >>> add_mask(vector, b"k" * 32, subtract=True)
    >>> vector.tolist()
    [0, 1, 2]
    """
    with extra():
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    width, step = vector.itemsize, _CHUNK // vector.itemsize
    length = min(_CHUNK, vector.nbytes)
    zeros, drawn = memoryview(bytes(length)), memoryview(bytearray(length))
    for begin in range(0, len(vector), step):
        part = vector[begin : begin + step]
        size = len(part) * width
        stream.update_into(zeros[:size], drawn[:size])
        mask = np.frombuffer(drawn[:size], dtype=vector.dtype)
        (np.subtract if subtract else np.add)(part, mask, out=part)


def self_key(context: bytes, client: int, seed: bytes) -> bytes:
    """The key of a client's self-mask."""
    return derive(seed, context, "self mask", client)


def commitment(context: bytes, client: int, seed: bytes) -> bytes:
    """What a client tells of its seed beforehand; two outputs of HKDF tell nothing of each other."""
    return derive(seed, context, "commitment", client)


def pair_key(context: bytes, secret: bytes, client: int, other: int, other_public: bytes) -> bytes:
    """The key of the mask that `client`, whose masking secret it is, and `other` both know."""
    return agree(secret, other_public, context, "pair mask", min(client, other), max(client, other))


def add_pair_mask(vector: Ring, key: bytes, client: int, other: int, *, undo: bool = False) -> None:
    """Add to the vector of `client` what it shares with `other`: the lower id adds, the higher subtracts."""
    add_mask(vector, key, subtract=(client > other) != undo)
