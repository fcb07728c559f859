"""Shamir's secret sharing over GF(2^128), from PyCryptodome.

PyCryptodome shares blocks of 16 bytes. A secret is padded (PKCS #7) and its blocks are shared separately; a
client's share is its index, 4 bytes little-endian, followed by its share of each block.
"""

from collections.abc import Sequence

from refiner.federation.secure.extra import secure_extra
from refiner.federation.secure.primitives import SECRET_BYTES

_INDEX_BYTES, _BLOCK_BYTES = 4, 16
_BLOCKS = SECRET_BYTES // _BLOCK_BYTES + 1  # a full block of padding
SHARE_BYTES = _INDEX_BYTES + _BLOCKS * _BLOCK_BYTES
"""Length of one share of a secret."""


def share_secret(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """Split a 32-byte secret into `count` shares, of which any `threshold` recover it.

    Returns:
        The shares with the indices 1, 2, ..., `count`, in this order.

    >>> secret = bytes(range(32))
    >>> shares = share_secret(secret, threshold=2, count=3)
    >>> combine_shares([shares[2], shares[0]]) == secret
    True
    """
    # PyCryptodome would accept these silently: the secret could not be recovered, or be cut when combined.
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= count < 1 << 8 * _INDEX_BYTES:
        raise ValueError(f"cannot split {len(secret)} bytes into {count} shares with threshold {threshold}")
    with secure_extra():
        from Crypto.Protocol.SecretSharing import Shamir
        from Crypto.Util.Padding import pad
    padded = pad(secret, _BLOCK_BYTES)
    shares = [bytearray(index.to_bytes(_INDEX_BYTES, "little")) for index in range(1, count + 1)]
    for start in range(0, len(padded), _BLOCK_BYTES):
        for index, block in Shamir.split(threshold, count, padded[start : start + _BLOCK_BYTES], ssss=False):
            shares[index - 1] += block
    return [bytes(share) for share in shares]


def share_index(share: bytes) -> int:
    """The index that a share was made for, from 1 on."""
    return int.from_bytes(share[:_INDEX_BYTES], "little")


def combine_shares(shares: Sequence[bytes]) -> bytes | None:
    """Recover the secret from exactly `threshold` shares.

    Wrong shares, or fewer than `threshold`, give None or wrong bytes: the caller must compare the result
    with the public key or commitment of the secret.

    Returns:
        The secret; None if the shares have wrong lengths or indices, or their padding shows that they do not
        belong together.
    """
    indices = [share_index(share) for share in shares]
    # The polynomial's value at index 0 is the secret itself: a share with index 0 would decide it alone.
    if not shares or 0 in indices or len(set(indices)) < len(indices):
        return None
    if any(len(share) != SHARE_BYTES for share in shares):
        return None
    with secure_extra():
        from Crypto.Protocol.SecretSharing import Shamir
        from Crypto.Util.Padding import unpad
    padded = b""
    for start in range(_INDEX_BYTES, SHARE_BYTES, _BLOCK_BYTES):
        blocks = [share[start : start + _BLOCK_BYTES] for share in shares]
        padded += Shamir.combine(list(zip(indices, blocks, strict=True)), ssss=False)
    try:
        secret = unpad(padded, _BLOCK_BYTES)
    except ValueError:
        return None
    return secret if len(secret) == SECRET_BYTES else None
