"""A linear axis with round ticks."""

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

    def digits(self) -> int:
        """Return the number of decimals that the ticks need.

        >>> Scale.over(0.0, 1.0).digits(), Scale.over(0.0, 100.0).digits()
        (1, 0)
        """
        return max(0, -math.floor(math.log10(self.step) + 1e-9))
