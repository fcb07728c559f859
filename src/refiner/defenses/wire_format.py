"""The number of bytes of an upload that is encoded without loss: zeros and levels are compact."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import torch

_FLOAT_BYTES = 4


@dataclass(frozen=True)
class WireFormat:
    """What is known about the entries of an upload, and how few bytes encode them.

    Args:
        bits: Bits of a quantised entry; None for floats, which count as four bytes each.
        zero_rate: Share of the entries that are zero, so that only the others are sent, with their indices.
        scope: Whether `zero_rate` holds for each tensor ("layer") or for all of them together ("global").

    >>> WireFormat(bits=8, zero_rate=0.9).size({"weight": torch.Size([1000])})
    304
    """

    bits: int | None = None
    zero_rate: float = 0.0
    scope: str = "layer"

    @property
    def has_zero(self) -> bool:
        """Whether zero can be represented; one-bit quantisation has two levels and neither is zero."""
        return self.bits != 1

    def size(self, shapes: Mapping[str, torch.Size]) -> int:
        """The number of bytes that one client's upload takes.

        Args:
            shapes: The shape of every parameter, by name.

        Returns:
            The smaller of the dense and, where entries are known to be zero, the sparse encoding.
        """
        counts = [shape.numel() for shape in shapes.values()]
        groups = [sum(counts)] if self.scope == "global" else counts
        sizes = [(n, n - count_at_rate(self.zero_rate, n)) for n in groups]  # entries, and nonzero ones
        if self.bits is None:
            return sum(min(_FLOAT_BYTES * n, k * (_FLOAT_BYTES + _index_bytes(n))) for n, k in sizes)
        # Each tensor has a scale, a float.
        scales = _FLOAT_BYTES * len(counts)
        dense = sum(-(-self.bits * n // 8) for n in counts) + scales
        sparse = sum(-(-self.bits * k // 8) + k * _index_bytes(n) for n, k in sizes) + scales
        return min(sparse, dense)


def count_at_rate(rate: float, n: int) -> int:
    """floor(rate · n) for the rate as it is written: 0.29 · 100 is 28.999… in floating point.

    >>> count_at_rate(0.29, 100)
    29
    """
    return math.floor(Fraction(str(rate)) * n)


def _index_bytes(n: int) -> int:
    """Whole bytes that hold an index below `n`."""
    return ((n - 1).bit_length() + 7) // 8 if n else 0
