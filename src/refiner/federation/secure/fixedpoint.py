"""Real numbers as whole ones modulo 2^32 or 2^64: masks are uniform there, and sums are exact."""

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from refiner import checks
from refiner.errors import DataError, SettingError

Ring = NDArray[np.unsignedinteger[Any]]
"""Whole numbers modulo 2^32 or 2^64; addition wraps."""


@dataclass(frozen=True)
class FixedPoint:
    """How a value becomes a whole number: value · weight · 2^fraction_bits, rounded, modulo 2^modulus_bits.

    >>> encoding = FixedPoint(bound=8, fraction_bits=16)
    >>> whole = encoding.encode(torch.tensor([0.5, -2.0]), weight=3)
    >>> encoding.decode(whole, weight=3).tolist()
    [0.5, -2.0]
    >>> encoding.encode(torch.tensor([9.0]))
    Traceback (most recent call last):
    refiner.errors.DataError: update: holds a value outside [-8, 8]; nothing leaves; use a larger bound
    """

    bound: float = 64.0
    """The largest magnitude of a value; more is refused, never clipped."""
    fraction_bits: int = 32
    """A value is rounded to a multiple of 2^−fraction_bits."""
    modulus_bits: int = 64
    """64, or 32 for half the traffic."""

    def __post_init__(self) -> None:
        checks.number("bound", self.bound, 0, 2.0**32, above=True)
        checks.integer("fraction_bits", self.fraction_bits, 1, 52)
        if self.modulus_bits not in (32, 64) or isinstance(self.modulus_bits, bool):
            raise checks.wrong("modulus_bits", self.modulus_bits, "32 or 64")

    @property
    def dtype(self) -> "np.dtype[np.unsignedinteger[Any]]":
        """Of the whole numbers; little-endian on every machine, as they travel."""
        return np.dtype("<u4") if self.modulus_bits == 32 else np.dtype("<u8")

    def largest(self, weight: int = 1) -> int:
        """The largest magnitude that one client's whole number can have."""
        return math.ceil(Fraction(self.bound) * weight * (1 << self.fraction_bits))

    def check_room(self, clients: int, max_weight: int = 1) -> None:
        """Refuse settings with which the sum of all clients could wrap.

        >>> FixedPoint(bound=8, fraction_bits=24, modulus_bits=32).check_room(clients=15)
        >>> FixedPoint(bound=8, fraction_bits=24, modulus_bits=32).check_room(clients=16)
        Traceback (most recent call last):
        refiner.errors.SettingError: fraction_bits = 24: 16 clients × weight 1 × bound 8 would wrap modulo
        2^32; use fraction_bits ≤ 23 or modulus_bits = 64
        """
        if not self._fits(clients, max_weight, self.fraction_bits):
            less = range(self.fraction_bits - 1, 0, -1)
            bits = next((bits for bits in less if self._fits(clients, max_weight, bits)), None)
            advice = "a smaller bound or max_weight" if bits is None else f"fraction_bits ≤ {bits}"
            other = " or modulus_bits = 64" if self.modulus_bits == 32 else ""
            raise SettingError(
                f"fraction_bits = {self.fraction_bits}: {clients} clients × weight {max_weight} × bound "
                f"{self.bound:g} would wrap modulo 2^{self.modulus_bits}; use {advice}{other}"
            )

    def _fits(self, clients: int, max_weight: int, fraction_bits: int) -> bool:
        # The weights are summed beside the values, as whole numbers without a fraction.
        each = max(replace(self, fraction_bits=fraction_bits).largest(max_weight), max_weight)
        return clients * each < 1 << (self.modulus_bits - 1)

    def encode(self, values: Tensor, weight: int = 1) -> Ring:
        """The whole numbers of `values [N]`, times `weight`."""
        if not isinstance(values, Tensor) or not values.is_floating_point() or values.ndim != 1:
            raise DataError("update: expected a floating-point tensor [N]; nothing leaves")
        wide = np.array(values.detach().cpu().double().numpy())
        # Not which value nor how many: the text of an error may reach the server.
        peak = float(np.abs(wide).max(initial=0.0))
        if not math.isfinite(peak):
            raise DataError("update: holds NaN or infinity; nothing leaves")
        if peak > self.bound:
            raise DataError(
                f"update: holds a value outside [-{self.bound:g}, {self.bound:g}]; nothing leaves; "
                "use a larger bound"
            )
        # One rounding: the factor is a power of two times a weight that float64 holds exactly.
        np.multiply(wide, float(weight) * 2.0**self.fraction_bits, out=wide)
        whole: Ring = np.rint(wide, out=wide).astype(np.int64).astype(self.dtype)
        return whole

    def decode(self, total: Ring, weight: int = 1) -> Tensor:
        """The values, in float64, of whole numbers that were summed, over the sum of their weights."""
        signed = self.signed(total).astype(np.float64)
        return torch.from_numpy(signed / (float(weight) * 2.0**self.fraction_bits))

    def signed(self, total: Ring) -> NDArray[np.int64]:
        """Whole numbers modulo 2^modulus_bits as those nearest to 0."""
        return total.view(total.dtype.str.replace("u", "i")).astype(np.int64)
