"""Noise from a secret key: one stream per sample, the same on every device and for every chunking.

The stream is ChaCha with 12 rounds (RFC 8439's layout) in plain tensor operations, on a GPU one kernel; the
sample's id is the nonce. A key from the operating system keeps the noise secret from a server. A stream that
depends on the sample alone gives an image the same noise at every upload, so that uploads can't be averaged,
and nothing is stored.

Why not a library's: `torch.Generator` gives other numbers on another device or for another chunking and has
no secret key, and ciphers of the `cryptography` package run on the CPU, one stream at a time.
"""

import hashlib
import hmac
import math
from secrets import token_bytes

import torch
from torch import Tensor

from refiner import checks
from refiner.core.kernels import kernels_available
from refiner.errors import SettingError

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_ROTATIONS = ((0, 1, 3, 16), (2, 3, 1, 12), (0, 1, 3, 8), (2, 3, 1, 7))
_WORDS = 16
_ROUNDS = 12
_LEVELS = 255


class NoiseSource:
    """Noise for samples by their ids, from a 32-byte key.

    Args:
        key: 32 secret bytes. Without a key and a seed they come from the operating system.
        seed: Derives the key from a public number: for tests and studies, never to protect data.
        first_victim: The index of the first victim, for draws that depend on a victim's index where victims
            are protected in chunks.
        upload: The number of an upload among several with the same seed: the children of each have other
            streams. None for an upload that stands alone.

    Raises:
        SettingError: The key is not 32 bytes, or `first_victim` or `upload` is negative.

    >>> ids = torch.tensor([7, 8])
    >>> both, last = (NoiseSource(seed=0).uniform(i, (3, 32, 32)) for i in (ids, ids[1:]))
    >>> torch.equal(both[1], last[0]), bool((both >= 0).all() and (both < 1).all())
    (True, True)
    """

    def __init__(
        self,
        key: bytes | None = None,
        *,
        seed: int | None = None,
        first_victim: int = 0,
        upload: int | None = None,
    ) -> None:
        if key is not None and (not isinstance(key, bytes) or len(key) != 32):
            # The value is left out: it may be a secret.
            raise SettingError("key: expected 32 secret bytes", field="key", expected="32 secret bytes")
        self.seeded = key is None and seed is not None
        """Whether the key comes from a seed, which is public."""
        self.first_victim = checks.integer("first_victim", first_victim, 0)
        """The index of the first victim."""
        self.upload = None if upload is None else checks.integer("upload", upload, 0)
        """The number of the upload among those with the same seed; None if it stands alone."""
        if key is None:
            key = hashlib.sha256(f"refiner seed {seed}".encode()).digest() if self.seeded else token_bytes(32)
        words = [*_CONSTANTS, *(int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4))]
        self.key = torch.tensor([_signed(word) for word in words], dtype=torch.int32)
        """ChaCha's four constants and the eight words of the key."""
        self._hash_factors: dict[tuple[int, torch.device], Tensor] = {}

    def child(self, index: int) -> "NoiseSource":
        """A source with its own streams, whose key is an HMAC of this one's key.

        Args:
            index: The number of the child, ≥ 0.

        Returns:
            The same child for the same key, index and upload; the first upload's is that of one alone.

        >>> parent, ids = NoiseSource(seed=0), torch.tensor([7])
        >>> a, b = (parent.child(index).uniform(ids, (8,)) for index in (0, 1))
        >>> torch.equal(a, b), torch.equal(a, NoiseSource(seed=0).child(0).uniform(ids, (8,)))
        (False, True)
        >>> torch.equal(a, NoiseSource(seed=0, upload=1).child(0).uniform(ids, (8,)))
        False
        """
        words = (word & 0xFFFFFFFF for word in self.key[len(_CONSTANTS) :].tolist())
        secret = b"".join(word.to_bytes(4, "little") for word in words)
        message = f"refiner child {checks.integer('index', index, 0)}"
        if self.upload:
            message += f" of upload {self.upload}"
        digest = hmac.digest(secret, message.encode(), "sha256")
        source = NoiseSource(digest, first_victim=self.first_victim)
        source.seeded = self.seeded
        return source

    def identify(self, x: Tensor, axes: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """A secret 64-bit id of every sample, a keyed hash of its content.

        Values are rounded to 256 levels from `low` to `high`: the same byte can become floats that differ in
        their last bit on two devices, and fresh noise for the same image could be averaged away.

        Args:
            x: Samples `[..., *input]`.
            axes: How many leading axes count samples.
            low: The smallest value of an input.
            high: The largest value of an input.

        Returns:
            Ids of the leading `axes` axes of `x`, int64.

        >>> source, byte = NoiseSource(seed=0), torch.arange(256.0).view(1, 256)
        >>> bool((byte / 255 == byte * (1 / 255)).all())
        False
        >>> bool(source.identify(byte / 255, axes=1) == source.identify(byte * (1 / 255), axes=1))
        True
        """
        levels = ((x.flatten(axes) - low) * (_LEVELS / (high - low))).round().to(torch.int64)
        return (levels * self._factors(levels.shape[-1], x.device)).sum(-1)

    def _factors(self, count: int, device: torch.device) -> Tensor:
        """The secret factors of a linear hash, the same for all samples of a size."""
        if (count, device) not in self._hash_factors:
            words = _chacha(self.key.to(device), torch.tensor([-1], device=device), -(-2 * count // _WORDS))
            low, high = words[0, : 2 * count].to(torch.int64).view(2, count)
            self._hash_factors[count, device] = (high << 32) ^ low
        return self._hash_factors[count, device]

    def uniform(self, ids: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """Noise in [0, 1); an id always gets the same.

        Args:
            ids: The ids of samples, int64 of any shape.
            shape: The shape of the noise of one sample.
            dtype: A floating-point type; each draw has at most 24 bits.

        Returns:
            `[*ids.shape, *shape]`.
        """
        return uniform(self.key.to(ids.device), ids, shape, dtype)


def uniform(key: Tensor, ids: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """`NoiseSource.uniform` as a function of tensors alone; `key` is a source's `key`."""
    count = math.prod(shape)
    words = _chacha(key, ids.flatten(), -(-count // _WORDS))[:, :count]
    # The upper 24 bits fit a float32 exactly; a half-precision type has room for fewer.
    bits = min(24, 1 - round(math.log2(torch.finfo(dtype).eps)))
    values = (words >> (32 - bits)).bitwise_and_((1 << bits) - 1).to(dtype).div_(1 << bits)
    return values.view(*ids.shape, *shape)


def gaussian(key: Tensor, ids: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal draws from the same stream, by the transform of Box and Muller; `key` is a source's `key`.

    Half of the uniform draws give radii: with 24 bits the largest is 5.8 standard deviations.

    >>> draws = gaussian(NoiseSource(seed=0).key, torch.arange(500), (3, 8))
    >>> draws.shape, round(float(draws.mean()), 1), round(float(draws.std()), 1)
    (torch.Size([500, 3, 8]), 0.0, 1.0)
    """
    count = math.prod(shape)
    # In float32 whatever the dtype: of few bits the logarithm of a small number would be coarse.
    radius, angle = uniform(key, ids, (2, -(-count // 2))).unbind(-2)
    radius = (-2 * torch.log1p(-radius)).sqrt()
    angle = 2 * math.pi * angle
    draws = torch.cat([radius * angle.cos(), radius * angle.sin()], dim=-1)[..., :count]
    return draws.view(*ids.shape, *shape).to(dtype)


def _chacha(key: Tensor, ids: Tensor, blocks: int, rounds: int = _ROUNDS) -> Tensor:
    """Blocks of 16 words for each id, `[N, 16 · blocks]` of int32: as RFC 8439, with the id in the nonce."""
    if kernels_available(ids):
        from refiner.core.kernels.chacha import chacha

        return chacha(key, ids, blocks, rounds)
    shape = (4, len(ids), blocks)
    counter = torch.arange(blocks, dtype=torch.int32, device=ids.device)
    low, high = _halves(ids)
    last = torch.stack([counter.expand(shape[1:]), torch.zeros_like(counter).expand(shape[1:])])
    last = torch.cat([last, torch.stack([low, high])[:, :, None].expand(2, *shape[1:])])
    # A row holds four words of the state, so that one operation does all four columns of a round.
    initial = [row.view(4, 1, 1).expand(shape) for row in key.view(3, 4)] + [last]
    rows = list(initial)
    for _ in range(rounds // 2):
        for direction in (1, -1):
            for left, right, other, bits in _ROTATIONS:
                rows[left] = rows[left] + rows[right]
                rows[other] = _rotate(rows[other] ^ rows[left], bits)
            # Rolling the rows turns diagonals into columns, and back.
            rows = [rows[0]] + [row.roll(-direction * i, dims=0) for i, row in enumerate(rows[1:], start=1)]
    mixed = torch.stack([row + first for row, first in zip(rows, initial, strict=True)])
    return mixed.permute(2, 3, 0, 1).flatten(1)


def _rotate(word: Tensor, bits: int) -> Tensor:
    # A right shift of int32 copies the sign bit: mask the copies away.
    # The sum is (word << bits) | low with one operation less: they share no bit.
    low = (word >> (32 - bits)).bitwise_and_((1 << bits) - 1)
    return low.add_(word, alpha=1 << bits)


def _halves(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The lower and the upper 32 bits of int64 ids, as int32."""
    low = ids & 0xFFFFFFFF
    return torch.where(low >= 2**31, low - 2**32, low).to(torch.int32), (ids >> 32).to(torch.int32)


def _signed(word: int) -> int:
    """An unsigned 32-bit word as the int32 of the same bits."""
    return word - 2**32 if word >= 2**31 else word
