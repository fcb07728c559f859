"""A share of images with its 95 % interval."""

import math
from dataclasses import dataclass

from refiner import checks

# The 97.5 % quantile of the normal distribution.
_Z = 1.959963984540054


@dataclass(frozen=True)
class Share:
    """A share of images with its 95 % interval; make one with `Share.of`.

    >>> Share.of(3, 20)
    Share(count=3, total=20, low=0.052..., high=0.360...)
    """

    count: int
    total: int
    low: float
    """The lower end of the interval, as a fraction."""
    high: float

    @classmethod
    def of(cls, count: int, total: int, clients: int | None = None) -> "Share":
        """Return `count` of `total` images with the Wilson interval.

        Args:
            count: How many images.
            total: Of how many.
            clients: How many clients the images belong to, if some have several. Images of one batch share an
                upload and are not independent: the interval counts clients, as if all images of a client
                always agreed, and is then wider rather than narrower than it should be.

        Returns:
            The share and its interval.

        Raises:
            SettingError: A number is out of range.

        >>> Share.of(0, 20).high < Share.of(0, 20, clients=5).high
        True
        """
        checks.integer("total", total, 1)
        checks.integer("count", count, 0, total)
        independent = total if clients is None else checks.integer("clients", clients, 1, total)
        return cls(count, total, *wilson_interval(count / total, independent))

    @property
    def value(self) -> float:
        """The share as a fraction."""
        return self.count / self.total

    def __str__(self) -> str:
        return f"{self.count} of {self.total}"


def wilson_interval(share: float, trials: int) -> tuple[float, float]:
    """Return the 95 % score interval of a share that was observed in independent trials.

    Wilson, "Probable inference, the law of succession, and statistical inference", Journal of the American
    Statistical Association, 1927. Unlike the normal approximation it is valid for few trials and for shares
    of 0 and 1.

    Args:
        share: The observed share, from 0 to 1.
        trials: The number of trials.

    Returns:
        The ends of the interval.

    >>> [round(end, 3) for end in wilson_interval(0.0, 20)]
    [0.0, 0.161]
    """
    weight = _Z**2 / trials
    centre = (share + weight / 2) / (1 + weight)
    half = math.sqrt(share * (1 - share) * weight + weight**2 / 4) / (1 + weight)
    # At shares of 0 and 1 one end is exactly the share; rounding must not move it.
    low = 0.0 if share == 0 else max(0.0, centre - half)
    high = 1.0 if share == 1 else min(1.0, centre + half)
    return low, high
