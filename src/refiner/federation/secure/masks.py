"""Masks: ChaCha20 key streams, read as integers and added to a vector modulo 2^32 or 2^64."""

from collections.abc import Mapping

import numpy as np

from refiner.federation.secure.extra import secure_extra
from refiner.federation.secure.fixedpoint import RingVector
from refiner.federation.secure.primitives import derive, shared_key

# Fits into a cache together with its part of the vector; smaller chunks cost more calls.
_CHUNK_BYTES = 1 << 20


def add_mask(vector: RingVector, key: bytes, *, subtract: bool = False) -> None:
    """Add the key stream of `key` to `vector` in place, or subtract it.

    Each key is derived for one mask of one round, so nonce and counter start at 0 (RFC 8439).

    >>> vector = np.arange(3, dtype="<u8")
    >>> add_mask(vector, b"k" * 32)
    >>> add_mask(vector, b"k" * 32, subtract=True)
    >>> vector.tolist()
    [0, 1, 2]
    """
    with secure_extra():
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    cipher = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    width, step = vector.itemsize, _CHUNK_BYTES // vector.itemsize
    length = min(_CHUNK_BYTES, vector.nbytes)
    zeros, stream = memoryview(bytes(length)), memoryview(bytearray(length))
    for begin in range(0, len(vector), step):
        chunk = vector[begin : begin + step]
        size = len(chunk) * width
        cipher.update_into(zeros[:size], stream[:size])
        mask = np.frombuffer(stream[:size], dtype=vector.dtype)
        (np.subtract if subtract else np.add)(chunk, mask, out=chunk)


def self_mask_key(context: bytes, client: int, seed: bytes) -> bytes:
    """The key of a client's self mask."""
    return derive(seed, context, "self mask", client)


def seed_commitment(context: bytes, client: int, seed: bytes) -> bytes:
    """A client's public commitment to its self-mask seed.

    HKDF outputs for different labels are independent, so it reveals nothing about the self mask.
    """
    return derive(seed, context, "commitment", client)


def pairwise_mask_key(context: bytes, secret: bytes, client: int, other: int, other_public: bytes) -> bytes:
    """The key of the mask that `client` and `other` share; `secret` is the masking secret of `client`."""
    return shared_key(secret, other_public, context, "pair mask", min(client, other), max(client, other))


def add_pairwise_mask(vector: RingVector, key: bytes, client: int, other: int, *, undo: bool = False) -> None:
    """Add the pairwise mask of `client` and `other` to the vector of `client`, in place.

    The client with the lower id adds the mask and the other one subtracts it, so they cancel in the sum.
    """
    add_mask(vector, key, subtract=(client > other) != undo)


def add_client_masks(
    vector: RingVector,
    context: bytes,
    client: int,
    seed: bytes,
    masking_secret: bytes,
    masking_keys: Mapping[int, bytes],
) -> None:
    """Add the self mask of `client` and its pairwise masks with the owners of `masking_keys`, in place."""
    add_mask(vector, self_mask_key(context, client, seed))
    for other, public in masking_keys.items():
        key = pairwise_mask_key(context, masking_secret, client, other, public)
        add_pairwise_mask(vector, key, client, other)
