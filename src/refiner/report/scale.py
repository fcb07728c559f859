"""Linear and logarithmic axes with round ticks."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """An axis from `low` to `high` with steps of 1, 2 or 5 times a power of ten; both ends are ticks."""

    low: float
    high: float
    step: float

    @classmethod
    def over(cls, least: float, most: float, steps: int = 6) -> "Scale":
        """Return the smallest scale that contains both values and has about `steps` steps.

        >>> Scale.over(9.3, 33.1).ticks()
        [5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0]
        """
        # A single value is placed in the middle of a scale as wide as the value is large.
        spread = most - least or abs(least) or 1.0
        if most == least:
            least, most = least - spread / 2, most + spread / 2
        power = 10.0 ** math.floor(math.log10(spread / steps))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * steps >= spread * 0.999)
        return cls(math.floor(least / step) * step, math.ceil(most / step) * step, step)

    def ticks(self) -> list[float]:
        """Return the ticks from `low` to `high`."""
        first = round(self.low / self.step)
        # Multiples of an integer avoid ticks such as 0.30000000000000004.
        return [float(f"{(first + n) * self.step:.12g}") for n in range(self.intervals + 1)]

    @property
    def intervals(self) -> int:
        """The number of steps from `low` to `high`."""
        return round((self.high - self.low) / self.step)

    def percent(self, value: float) -> float:
        """Return the position of a value: 0 at `low`, 100 at `high`; values outside are put at the ends.

        >>> Scale(0.0, 40.0, 10.0).percent(10.0), Scale(0.0, 40.0, 10.0).percent(math.inf)
        (25.0, 100.0)
        """
        share = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
        return round(100 * share, 2)

    def label(self, tick: float) -> str:
        """Return a tick as text, with as many decimals as all ticks need.

        >>> Scale.over(0.0, 1.0).label(1.0), Scale.over(0.0, 9000.0).label(2000.0)
        ('1.0', '2,000')
        """
        return f"{tick:,.{self.digits()}f}"

    def digits(self) -> int:
        """Return the number of decimals that the ticks need.

        >>> Scale.over(0.0, 1.0).digits(), Scale.over(0.0, 100.0).digits()
        (1, 0)
        """
        return max(0, -math.floor(math.log10(self.step) + 1e-9))


@dataclass(frozen=True)
class LogScale(Scale):
    """A logarithmic axis whose ticks are powers of ten; `low` and `high` are exponents.

    Zero, which has no logarithm, is put one step before the first power.
    """

    with_zero: bool = False

    @classmethod
    def over_positive(cls, least: float, most: float, with_zero: bool = False) -> "LogScale":
        """Return the smallest scale that contains both values.

        >>> LogScale.over_positive(0.03, 8.0, with_zero=True).ticks()
        [0.0, 0.01, 0.1, 1.0, 10.0]
        """
        low, high = math.floor(math.log10(least) + 1e-9), math.ceil(math.log10(most) - 1e-9)
        return cls(float(low), float(max(high, low + 1)), 1.0, with_zero)

    def ticks(self) -> list[float]:
        """Return zero, if it is on the scale, and the powers of ten."""
        powers = [float(f"1e{n}") for n in range(round(self.low), round(self.high) + 1)]
        return [0.0, *powers] if self.with_zero else powers

    def percent(self, value: float) -> float:
        """Return the position of a value: 0 at the first tick, 100 at the last.

        >>> scale = LogScale.over_positive(0.1, 10.0, with_zero=True)
        >>> [scale.percent(value) for value in (0.0, 0.1, 1.0, 10.0)]
        [0.0, 33.33, 66.67, 100.0]
        """
        start = self.low - self.with_zero
        exponent = math.log10(value) if value > 0 else start
        share = (min(max(exponent, start), self.high) - start) / (self.high - start)
        return round(100 * share, 2)

    def label(self, tick: float) -> str:
        """Return a tick as text.

        >>> LogScale.over_positive(0.001, 1.0).label(0.01)
        '0.01'
        """
        return f"{tick:,.0f}" if tick >= 1 else f"{tick:g}"
