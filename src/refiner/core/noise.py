"""Uniform noise from a secret key: one stream a sample, the same on every device and in every chunk.

The stream is ChaCha with 12 rounds in plain tensor operations, on a GPU in one kernel; its nonce is a keyed
hash of the sample. A key from the operating system keeps the noise from a server; a stream that depends on
the sample alone gives an image the same noise at every upload, so that many uploads of it can't be averaged,
and stores nothing.
"""

import hashlib
import hmac
import math
import secrets

import torch
from torch import Tensor

from refiner import checks
from refiner.core.kernels import usable
from refiner.errors import SettingError

_CONSTANTS = (0x61707865, 0x3320646E, 0x79622D32, 0x6B206574)
_ROTATIONS = ((0, 1, 3, 16), (2, 3, 1, 12), (0, 1, 3, 8), (2, 3, 1, 7))
_WORDS = 16
_ROUNDS = 12
_LEVELS = 255


class NoiseSource:
    """Noise for samples by id, from a 32-byte key; without key and seed the key comes from the system.

    >>> ids = torch.tensor([7, 8])
    >>> a, b = (NoiseSource(seed=0).uniform(some, (3, 32, 32)) for some in (ids, ids[1:]))
    >>> torch.equal(a[1], b[0]), bool((a >= 0).all() and (a < 1).all())
    (True, True)
    """

    def __init__(self, key: bytes | None = None, *, seed: int | None = None, first: int = 0) -> None:
        if key is not None and (not isinstance(key, bytes) or len(key) != 32):
            raise SettingError("key: expected 32 secret bytes")
        self.seeded = key is None and seed is not None
        """Whether the key comes from a seed, which is public: for tests and studies."""
        self.first = checks.integer("first", first, 0)
        """The first victim's place: draws by place go on from it where victims are protected in parts."""
        if key is None:
            key = (
                hashlib.sha256(f"refiner seed {seed}".encode()).digest()
                if self.seeded
                else secrets.token_bytes(32)
            )
        words = [*_CONSTANTS, *(int.from_bytes(key[i : i + 4], "little") for i in range(0, 32, 4))]
        self.key = torch.tensor([_signed(word) for word in words], dtype=torch.int32)
        self._factors: dict[tuple[int, torch.device], Tensor] = {}

    def child(self, index: int) -> "NoiseSource":
        """The source of part `index` of a whole, with a stream of its own: its key is an HMAC of this key.

        >>> parent, ids = NoiseSource(seed=0), torch.tensor([7])
        >>> a, b = (parent.child(part).uniform(ids, (8,)) for part in (0, 1))
        >>> torch.equal(a, b), torch.equal(a, NoiseSource(seed=0).child(0).uniform(ids, (8,)))
        (False, True)
        """
        words = (word & 0xFFFFFFFF for word in self.key[len(_CONSTANTS) :].tolist())
        secret = b"".join(word.to_bytes(4, "little") for word in words)
        told = f"refiner child {checks.integer('index', index, 0)}".encode()
        source = NoiseSource(hmac.digest(secret, told, "sha256"), first=self.first)
        source.seeded = self.seeded
        return source

    def identify(self, x: Tensor, axes: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """A secret 64-bit name of every sample, by its content: `x [..., *input]` with `axes` axes in front.

        Values count as one of 256 levels from `low` to `high`: a byte becomes another last bit of a float on
        another device, and fresh noise for the same image could be averaged away.

        >>> source, byte = NoiseSource(seed=0), torch.arange(256.0).view(1, 256)
        >>> bool((byte / 255 == byte * (1 / 255)).all())
        False
        >>> bool(source.identify(byte / 255, axes=1) == source.identify(byte * (1 / 255), axes=1))
        True
        """
        levels = ((x.flatten(axes) - low) * (_LEVELS / (high - low))).round().to(torch.int64)
        return (levels * self._factor(levels.shape[-1], x.device)).sum(-1)

    def _factor(self, count: int, device: torch.device) -> Tensor:
        """Secret factors of a linear hash, the same for all samples of a size."""
        if (count, device) not in self._factors:
            words = _chacha(self.key.to(device), torch.tensor([-1], device=device), -(-2 * count // _WORDS))
            low, high = words[0, : 2 * count].to(torch.int64).view(2, count)
            self._factors[count, device] = (high << 32) ^ low
        return self._factors[count, device]

    def uniform(self, ids: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """Noise in [0, 1) of shape `[*ids.shape, *shape]`; each id always has the same."""
        return uniform(self.key.to(ids.device), ids, shape, dtype)


def uniform(key: Tensor, ids: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """`NoiseSource.uniform` as a function of tensors alone; `key` is a source's `key`."""
    count = math.prod(shape)
    words = _chacha(key, ids.flatten(), -(-count // _WORDS))[:, :count]
    # The upper 24 bits are what a float32 holds exactly, a half-precision type holds fewer.
    bits = min(24, 1 - round(math.log2(torch.finfo(dtype).eps)))
    values = (words >> (32 - bits)).bitwise_and_((1 << bits) - 1).to(dtype).div_(1 << bits)
    return values.view(*ids.shape, *shape)


def _chacha(key: Tensor, ids: Tensor, blocks: int, rounds: int = _ROUNDS) -> Tensor:
    """Blocks of 16 words for each id, `[N, 16 · blocks]` of int32: as RFC 8439, the id in the nonce."""
    if usable(ids):
        from refiner.core.kernels.chacha import chacha

        return chacha(key, ids, blocks, rounds)
    wide = (4, len(ids), blocks)
    counter = torch.arange(blocks, dtype=torch.int32, device=ids.device)
    low, high = _halves(ids)
    last = torch.stack([counter.expand(wide[1:]), torch.zeros_like(counter).expand(wide[1:])])
    last = torch.cat([last, torch.stack([low, high])[:, :, None].expand(2, *wide[1:])])
    # A row holds four words of the state, so that one operation does all four columns of a round.
    start = [row.view(4, 1, 1).expand(wide) for row in key.view(3, 4)] + [last]
    rows = list(start)
    for _ in range(rounds // 2):
        for turn in (1, -1):
            for left, right, other, bits in _ROTATIONS:
                rows[left] = rows[left] + rows[right]
                rows[other] = _rotate(rows[other] ^ rows[left], bits)
            # Turning the rows makes the diagonals columns, and back.
            rows = [rows[0]] + [row.roll(-turn * i, dims=0) for i, row in enumerate(rows[1:], start=1)]
    mixed = torch.stack([row + first for row, first in zip(rows, start, strict=True)])
    return mixed.permute(2, 3, 0, 1).flatten(1)


def _rotate(word: Tensor, bits: int) -> Tensor:
    # int32 shifts to the right keep the sign: mask the copies of it away.
    # The sum is (word << bits) | low with one operation less: they share no bit.
    low = (word >> (32 - bits)).bitwise_and_((1 << bits) - 1)
    return low.add_(word, alpha=1 << bits)


def _halves(ids: Tensor) -> tuple[Tensor, Tensor]:
    low = ids & 0xFFFFFFFF
    return torch.where(low >= 2**31, low - 2**32, low).to(torch.int32), (ids >> 32).to(torch.int32)


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word
