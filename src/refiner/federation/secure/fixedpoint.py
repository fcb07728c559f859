"""Fixed-point encoding of updates as integers modulo 2^32 or 2^64, where sums are exact and masks uniform."""

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

RingVector = NDArray[np.unsignedinteger[Any]]
"""Unsigned integers modulo 2^32 or 2^64; addition wraps."""


@dataclass(frozen=True)
class FixedPoint:
    """Encodes a value as round(value · weight · 2^fraction_bits) modulo 2^modulus_bits.

    Args:
        bound: The largest magnitude of a value, in (0, 2^32]. Larger ones are clipped to it.
        fraction_bits: Values are rounded to a multiple of 2^−fraction_bits, in [1, 52].
        modulus_bits: 64, or 32 for half the traffic.

    Raises:
        SettingError: A setting is out of range.

    >>> encoding = FixedPoint(bound=8, fraction_bits=16)
    >>> encoded = encoding.encode(torch.tensor([0.5, -2.0]), weight=3)
    >>> encoding.decode(encoded, weight=3).tolist()
    [0.5, -2.0]
    >>> encoding.decode(encoding.encode(torch.tensor([9.0]))).tolist()
    [8.0]
    """

    bound: float = 64.0
    fraction_bits: int = 32
    modulus_bits: int = 64

    def __post_init__(self) -> None:
        checks.number("bound", self.bound, 0, 2.0**32, above=True)
        checks.integer("fraction_bits", self.fraction_bits, 1, 52)
        if self.modulus_bits not in (32, 64) or isinstance(self.modulus_bits, bool):
            raise checks.wrong("modulus_bits", self.modulus_bits, "32 or 64")

    @property
    def dtype(self) -> "np.dtype[np.unsignedinteger[Any]]":
        """NumPy dtype of the encoded integers: little-endian on every machine, as they are sent."""
        return np.dtype("<u4") if self.modulus_bits == 32 else np.dtype("<u8")

    def max_encoded(self, weight: int = 1) -> int:
        """The largest magnitude of an integer that one client can encode.

        Args:
            weight: The client's weight.

        Returns:
            bound · weight · 2^fraction_bits, rounded up.
        """
        return math.ceil(Fraction(self.bound) * weight * (1 << self.fraction_bits))

    def check_sum_fits(self, clients: int, max_weight: int = 1) -> None:
        """Check that the sum over all clients cannot wrap around the modulus.

        Args:
            clients: Number of clients in the sum.
            max_weight: The largest weight of a client.

        Raises:
            SettingError: The sum could wrap; the message names settings that fit.

        >>> FixedPoint(bound=8, fraction_bits=24, modulus_bits=32).check_sum_fits(clients=15)
        >>> FixedPoint(bound=8, fraction_bits=24, modulus_bits=32).check_sum_fits(clients=16)
        Traceback (most recent call last):
        refiner.errors.SettingError: fraction_bits = 24: 16 clients × weight 1 × bound 8 would wrap modulo
        2^32; use fraction_bits ≤ 23 or modulus_bits = 64
        """
        if not self._sum_fits(clients, max_weight, self.fraction_bits):
            smaller = range(self.fraction_bits - 1, 0, -1)
            bits = next((bits for bits in smaller if self._sum_fits(clients, max_weight, bits)), None)
            expected = "a smaller bound or max_weight" if bits is None else f"fraction_bits ≤ {bits}"
            expected += " or modulus_bits = 64" if self.modulus_bits == 32 else ""
            raise SettingError(
                f"fraction_bits = {self.fraction_bits}: {clients} clients × weight {max_weight} × bound "
                f"{self.bound:g} would wrap modulo 2^{self.modulus_bits}; use {expected}",
                field="fraction_bits",
                value=self.fraction_bits,
                expected=expected,
            )

    def _sum_fits(self, clients: int, max_weight: int, fraction_bits: int) -> bool:
        # The weights are summed in the same vector, as integers without a fraction.
        per_client = max(replace(self, fraction_bits=fraction_bits).max_encoded(max_weight), max_weight)
        return clients * per_client < 1 << (self.modulus_bits - 1)

    def encode(self, values: Tensor, weight: int = 1) -> RingVector:
        """Encode `values` times `weight` as integers.

        Args:
            values: Floating-point tensor `[N]`. Values beyond ±`bound` are clipped to it; NaN counts as 0.
            weight: The client's weight, an integer ≥ 1.

        Returns:
            `[N]` integers of `dtype`.

        Raises:
            DataError: Not a floating-point vector.
        """
        if not isinstance(values, Tensor) or not values.is_floating_point() or values.ndim != 1:
            raise invalid_update(values, "expected a floating-point tensor [N]; nothing was sent")
        scaled = np.array(values.detach().cpu().double().numpy())
        # Clipped, not refused: the server chooses the model, and a refusal would tell it about the data.
        np.clip(np.nan_to_num(scaled, copy=False, nan=0.0), -self.bound, self.bound, out=scaled)
        # Rounds once: the factor is a power of two times a weight that float64 represents exactly.
        np.multiply(scaled, float(weight) * 2.0**self.fraction_bits, out=scaled)
        encoded: RingVector = np.rint(scaled, out=scaled).astype(np.int64).astype(self.dtype)
        return encoded

    def decode(self, total: RingVector, weight: int = 1) -> Tensor:
        """Decode a sum of encoded vectors into their weighted mean.

        Args:
            total: `[N]` integers, the sum of encoded vectors.
            weight: The sum of their weights.

        Returns:
            The mean `[N]`, float64.
        """
        signed = self.to_signed(total).astype(np.float64)
        return torch.from_numpy(signed / (float(weight) * 2.0**self.fraction_bits))

    def to_signed(self, total: RingVector) -> NDArray[np.int64]:
        """Integers modulo 2^modulus_bits as the representatives nearest to 0.

        Args:
            total: `[N]` integers of `dtype`.

        Returns:
            `[N]` signed integers.
        """
        return total.view(total.dtype.str.replace("u", "i")).astype(np.int64)


def invalid_update(values: object, reason: str) -> DataError:
    """The error for an update that cannot be encoded; it describes a tensor by its type and shape only."""
    description = values if isinstance(values, Tensor) else type(values).__name__
    return DataError(f"update: {reason}", field="update", value=description, expected="finite values [N]")
