"""Gradient pruning: the smallest entries are set to zero."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.core.gradients import Gradients, flatten
from refiner.core.noise import NoiseSource
from refiner.defenses.gradient_transform import GradientTransform
from refiner.defenses.wire_format import WireFormat, count_at_rate

SCOPES = ("layer", "global")


@dataclass(frozen=True)
class Pruning(GradientTransform):
    """Sets the floor(rate · n) entries of smallest magnitude to zero; of equal ones, those that come first.

    Paper: Lin et al., Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed
    Training, ICLR 2018 (as a defence: Zhu et al., Deep Leakage from Gradients, NeurIPS 2019).

    >>> gradient = {"weight": torch.tensor([[3.0, -1.0, 2.0, 1.0]]), "bias": torch.tensor([[0.5, -0.1]])}
    >>> pruned = Pruning(rate=0.5).transform(gradient, NoiseSource(), 1)
    >>> pruned["weight"].tolist(), [round(b, 1) for b in pruned["bias"][0].tolist()]
    ([[3.0, 0.0, 2.0, 0.0]], [0.5, 0.0])
    >>> Pruning(rate=1)
    Traceback (most recent call last):
    refiner.errors.SettingError: rate = 1: expected a number in [0, 1)
    """

    rate: float = 0.9
    """Share of the entries that are set to zero; the paper varies it from 0.1 to 0.9."""
    scope: str = "layer"
    """Prune every tensor by itself ("layer", as deep gradient compression does) or all as one ("global")."""

    name: ClassVar[str] = "pruning"
    reference: ClassVar[str] = (
        "Lin et al., Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed "
        "Training, ICLR 2018"
    )
    cost: ClassVar[str] = "a selection of the smallest entries"

    def __post_init__(self) -> None:
        expected = "a number in [0, 1)"
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0 <= self.rate < 1:
            raise checks.wrong("rate", self.rate, expected)
        checks.choice("scope", self.scope, SCOPES)

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        """The gradient with its smallest entries set to zero."""
        if self.scope == "layer":
            return {
                name: self._prune(value[:, None].flatten(1)).view_as(value)
                for name, value in gradient.items()
            }
        sizes = [value[0].numel() for value in gradient.values()]
        blocks = torch.split(self._prune(flatten(gradient)), sizes, dim=1)
        named = zip(gradient.items(), blocks, strict=True)
        return {name: block.view_as(value).to(value.dtype) for (name, value), block in named}

    def wire_format(self, incoming: WireFormat) -> WireFormat:
        """More zeros; quantisation levels survive if zero is one of them.

        >>> shapes = {"weight": torch.Size([100, 10])}
        >>> Pruning(rate=0.9).wire_bytes(shapes), Pruning(rate=0.1).wire_bytes(shapes)
        (600, 4000)
        """
        bits = incoming.bits if incoming.has_zero else None
        if self.rate > incoming.zero_rate:
            return WireFormat(bits, self.rate, self.scope)
        return replace(incoming, bits=bits)

    def _prune(self, flat: Tensor) -> Tensor:
        count = count_at_rate(self.rate, flat.shape[1])
        if not count:
            return flat
        magnitude = flat.abs()
        threshold = _kth_smallest(magnitude, count)
        pruned = magnitude < threshold
        tied = magnitude == threshold
        remaining = count - pruned.sum(1, keepdim=True)
        pruned |= tied & (tied.cumsum(1) <= remaining)
        return flat.masked_fill(pruned, 0)


def _kth_smallest(magnitude: Tensor, k: int) -> Tensor:
    """The `k`-th smallest entry of each row, `[V, 1]`; NaN counts as the largest."""
    # On a GPU `kthvalue` uses one block per row, while a sort uses all of them.
    if magnitude.is_cuda:
        return _kth_smallest_by_sort(magnitude, k)
    return magnitude.kthvalue(k, dim=1, keepdim=True).values


def _kth_smallest_by_sort(magnitude: Tensor, k: int) -> Tensor:
    return magnitude.sort(dim=1).values[:, k - 1 : k]
