"""Gradient quantisation: every entry becomes one of a few levels."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.core.distributions import pieces
from refiner.core.gradients import Gradients
from refiner.core.noise import NoiseSource
from refiner.defenses.base import GradientTransform


@dataclass(frozen=True)
class Quantisation(GradientTransform):
    """Rounds each tensor of each victim to 2^bits − 1 even levels over [−m, m], m its largest magnitude.

    Zero is one of the levels. A single bit has none for it: an entry becomes ± one scale, and zero counts
    as positive. The scale is the mean magnitude, as in error-feedback signSGD: of all c · sign(g) that one is
    the nearest to g. With stochastic rounding it is m: no smaller one could keep the mean of every entry.

    >>> gradient = {"weight": torch.tensor([[-1.0, -0.4, 0.0, 0.8]])}
    >>> Quantisation(bits=2).transform(gradient, NoiseSource(), 1)["weight"].tolist()
    [[-1.0, 0.0, 0.0, 1.0]]
    >>> Quantisation(bits=0)
    Traceback (most recent call last):
    refiner.errors.SettingError: bits = 0: expected an integer in [1, 32]
    """

    bits: int = 8
    """Bits an entry; the paper takes 1, 2, 4, 8, 12, 16, 20, 24 and 28."""
    stochastic: bool = False
    """Round up or down by chance, so that the mean over many draws is the gradient; else to the nearest."""

    name: ClassVar[str] = "gq"
    cost: ClassVar[str] = "a rounding an entry"

    def __post_init__(self) -> None:
        checks.integer("bits", self.bits, 1, 32)
        checks.flag("stochastic", self.stochastic)

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        """The gradient on its levels."""
        return {
            name: self._tensor(value, noise, place) for place, (name, value) in enumerate(gradient.items())
        }

    def wire_bytes(self, shapes: Mapping[str, torch.Size]) -> int:
        """The entries' bits, packed tensor by tensor, and four bytes for each tensor's scale.

        >>> Quantisation(bits=1).wire_bytes({"weight": torch.Size([10, 3]), "bias": torch.Size([10])})
        14
        """
        return sum(-(-self.bits * shape.numel() // 8) + 4 for shape in shapes.values())

    def _tensor(self, value: Tensor, noise: NoiseSource, number: int) -> Tensor:
        flat = value[:, None].flatten(1)
        if not flat.numel():
            return value
        if self.bits > 1 or self.stochastic:
            scale = flat.abs().amax(1, keepdim=True).double()
        else:
            scale = flat.abs().mean(1, keepdim=True, dtype=torch.float64)
        rounded = torch.empty_like(flat)
        for place, ids in pieces(flat, number, first=noise.first):
            # 24 bits and more need float64: a float32 has no room for the levels.
            part, unit = flat[place].double(), scale[place[0]]
            drawn = None
            if self.stochastic:
                drawn = noise.uniform(ids, (part.shape[1],), torch.float64).add_(2.0**-25)
            rounded[place] = self._rounded(part / torch.where(unit == 0, 1, unit), drawn) * unit
        # −0 would tell the sign of an entry that was rounded to zero: adding 0 makes it 0.
        return rounded.add_(0.0).view_as(value)

    def _rounded(self, share: Tensor, drawn: Tensor | None) -> Tensor:
        """Shares of the scale on their levels; the upper one where `drawn` in (0, 1) is below the rest."""
        if self.bits == 1:
            up = share >= 0 if drawn is None else drawn < (share + 1) / 2
            return 2 * up.double() - 1
        top = (1 << (self.bits - 1)) - 1
        steps = share * top
        if drawn is None:
            return steps.round() / top
        low = steps.floor()
        return (low + (drawn < steps - low)) / top
