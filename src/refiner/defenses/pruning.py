"""Gradient pruning: the smallest entries become zero."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.core.gradients import Gradients, flatten
from refiner.core.noise import NoiseSource
from refiner.defenses.base import GradientTransform

SCOPES = ("layer", "global")


@dataclass(frozen=True)
class Pruning(GradientTransform):
    """Sets the floor(rate · n) entries of smallest magnitude to zero; of equal ones, those that come first.

    >>> gradient = {"weight": torch.tensor([[3.0, -1.0, 2.0, 1.0]]), "bias": torch.tensor([[0.5, -0.1]])}
    >>> pruned = Pruning(rate=0.5).transform(gradient, NoiseSource(), 1)
    >>> pruned["weight"].tolist(), [round(b, 1) for b in pruned["bias"][0].tolist()]
    ([[3.0, 0.0, 2.0, 0.0]], [0.5, 0.0])
    >>> Pruning(rate=1)
    Traceback (most recent call last):
    refiner.errors.SettingError: rate = 1: expected a number in [0, 1)
    """

    rate: float = 0.9
    """Share of the entries that become zero; the paper varies it from 0.1 to 0.9."""
    scope: str = "layer"
    """Whether n counts each tensor alone ("layer", as deep gradient compression does) or all ("global")."""

    name: ClassVar[str] = "pruning"
    cost: ClassVar[str] = "a selection of the smallest entries"

    def __post_init__(self) -> None:
        expected = "a number in [0, 1)"
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0 <= self.rate < 1:
            raise checks.wrong("rate", self.rate, expected)
        checks.choice("scope", self.scope, SCOPES)

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        """The gradient without its smallest entries."""
        if self.scope == "layer":
            return {
                name: self._prune(value[:, None].flatten(1)).view_as(value)
                for name, value in gradient.items()
            }
        sizes = [value[0].numel() for value in gradient.values()]
        parts = torch.split(self._prune(flatten(gradient)), sizes, dim=1)
        named = zip(gradient.items(), parts, strict=True)
        return {name: part.view_as(value).to(value.dtype) for (name, value), part in named}

    def wire_bytes(self, shapes: Mapping[str, torch.Size]) -> int:
        """Kept values, each with its index in the whole bytes that log2 n bits need; or all, if that is less.

        >>> sizes = {"weight": torch.Size([100, 10])}
        >>> Pruning(rate=0.9).wire_bytes(sizes), Pruning(rate=0.1).wire_bytes(sizes)
        (600, 4000)
        """
        counts = [shape.numel() for shape in shapes.values()]
        if self.scope == "global":
            counts = [sum(counts)]
        return sum(min(4 * n, (n - self._count(n)) * (4 + _index_bytes(n))) for n in counts)

    def _count(self, n: int) -> int:
        """How many of n are pruned: of the rate as it is written, since 0.29 · 100 is 28.999… in floats."""
        return math.floor(Fraction(str(self.rate)) * n)

    def _prune(self, flat: Tensor) -> Tensor:
        count = self._count(flat.shape[1])
        if not count:
            return flat
        magnitude = flat.abs()
        limit = _limit(magnitude, count)
        pruned = magnitude < limit
        level = magnitude == limit
        room = count - pruned.sum(1, keepdim=True)
        pruned |= level & (level.cumsum(1) <= room)
        return flat.masked_fill(pruned, 0)


def _limit(magnitude: Tensor, count: int) -> Tensor:
    """The `count`-th smallest of each row, `[V, 1]`; NaN is the greatest."""
    # A GPU selects in one block a row, and sorts with all of them.
    if magnitude.is_cuda:
        return _by_sort(magnitude, count)
    return magnitude.kthvalue(count, dim=1, keepdim=True).values


def _by_sort(magnitude: Tensor, count: int) -> Tensor:
    return magnitude.sort(dim=1).values[:, count - 1 : count]


def _index_bytes(n: int) -> int:
    return ((n - 1).bit_length() + 7) // 8 if n else 0
