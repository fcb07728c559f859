"""Gradient quantisation: every entry is rounded to one of a few levels."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.core.distributions import stream_blocks
from refiner.core.gradients import Gradients
from refiner.core.noise import NoiseSource
from refiner.defenses.gradient_transform import GradientTransform
from refiner.defenses.wire_format import WireFormat


@dataclass(frozen=True)
class Quantisation(GradientTransform):
    """Rounds each tensor of each victim to 2^bits − 1 even levels over [−m, m], m its largest magnitude.

    Zero is one of the levels. With a single bit it is not: every entry becomes ± one scale, and zero counts
    as positive. That scale is the mean magnitude, as in error-feedback signSGD (Karimireddy et al., ICML
    2019): of all c · sign(g) it is the nearest to g. With stochastic rounding it is m, the smallest scale
    that preserves the mean of every entry.

    Paper: Reisizadeh et al., FedPAQ: A Communication-Efficient Federated Learning Method with Periodic
    Averaging and Quantization, AISTATS 2020.

    >>> gradient = {"weight": torch.tensor([[-1.0, -0.4, 0.0, 0.8]])}
    >>> Quantisation(bits=2).transform(gradient, NoiseSource(), 1)["weight"].tolist()
    [[-1.0, 0.0, 0.0, 1.0]]
    >>> Quantisation(bits=0)
    Traceback (most recent call last):
    refiner.errors.SettingError: bits = 0: expected an integer in [1, 32]
    """

    bits: int = 8
    """Bits per entry; the paper uses 1, 2, 4, 8, 12, 16, 20, 24 and 28."""
    stochastic: bool = False
    """Round up or down at random so that the expected value is the gradient; else to the nearest level."""

    name: ClassVar[str] = "gq"
    reference: ClassVar[str] = (
        "Reisizadeh et al., FedPAQ: A Communication-Efficient Federated Learning Method with Periodic "
        "Averaging and Quantization, AISTATS 2020"
    )
    cost: ClassVar[str] = "a rounding per entry"

    def __post_init__(self) -> None:
        checks.integer("bits", self.bits, 1, 32)
        checks.flag("stochastic", self.stochastic)

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        """The gradient rounded to its levels."""
        return {
            name: self._quantise(value, noise, index) for index, (name, value) in enumerate(gradient.items())
        }

    def wire_format(self, incoming: WireFormat) -> WireFormat:
        """`bits` per entry and a scale per tensor; zeros survive unless there is a single bit.

        >>> Quantisation(bits=1).wire_bytes({"weight": torch.Size([10, 3]), "bias": torch.Size([10])})
        14
        """
        return replace(incoming, bits=self.bits) if self.bits > 1 else WireFormat(bits=1)

    def _quantise(self, value: Tensor, noise: NoiseSource, index: int) -> Tensor:
        """One tensor `[V, *shape]`; `index` gives it random draws of its own."""
        flat = value[:, None].flatten(1)
        if not flat.numel():
            return value
        if self.bits > 1 or self.stochastic:
            scale = flat.abs().amax(1, keepdim=True).double()
        else:
            scale = flat.abs().mean(1, keepdim=True, dtype=torch.float64)
        rounded = torch.empty_like(flat)
        for place, ids in stream_blocks(flat, index, first_victim=noise.first_victim):
            # From 24 bits on the levels need float64.
            block, unit = flat[place].double(), scale[place[0]]
            uniform = None
            if self.stochastic:
                uniform = noise.uniform(ids, (block.shape[1],), torch.float64).add_(2.0**-25)
            rounded[place] = self._round(block / torch.where(unit == 0, 1, unit), uniform) * unit
        # −0 would reveal the sign of an entry that was rounded to zero; adding 0 makes it +0.
        return rounded.add_(0.0).view_as(value)

    def _round(self, ratio: Tensor, uniform: Tensor | None) -> Tensor:
        """Ratios to the scale, rounded to a level; at random by `uniform` draws in (0, 1) if given."""
        if self.bits == 1:
            up = ratio >= 0 if uniform is None else uniform < (ratio + 1) / 2
            return 2 * up.double() - 1
        top = (1 << (self.bits - 1)) - 1
        steps = ratio * top
        if uniform is None:
            return steps.round() / top
        low = steps.floor()
        return (low + (uniform < steps - low)) / top
