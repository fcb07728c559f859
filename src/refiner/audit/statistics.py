"""Means over images with their intervals."""

from collections.abc import Mapping, Sequence

import numpy as np

from refiner.audit.result import Mean

RESAMPLES = 2000


def mean_interval(values: Sequence[float], groups: int) -> Mean:
    """The mean and its 95 % interval: a percentile bootstrap of `groups` victims with equally many values.

    Victims are drawn, not images: those of one batch share an upload, and are no independent trials. The
    draws are fixed, so that the same values give the same interval.

    >>> mean_interval([1.0, 2.0, 3.0, 4.0], groups=4)
    Mean(value=2.5, low=1.5, high=3.5)
    >>> mean_interval([1.0, 2.0], groups=1)
    Mean(value=1.5, low=None, high=None)
    """
    each = np.asarray(values, dtype=np.float64).reshape(groups, -1).mean(1)
    value = float(each.mean())
    if groups < 2:
        return Mean(value, None, None)
    draws = np.random.default_rng(0).integers(0, groups, (RESAMPLES, groups))
    low, high = np.quantile(each[draws].mean(1), (0.025, 0.975))
    return Mean(value, float(low), float(high))


def all_means(columns: Mapping[str, Sequence[float] | None], groups: int) -> dict[str, Mean]:
    """The means of all columns that are there.

    >>> all_means({"psnr": [10.0, 12.0], "lpips": None}, groups=2)["psnr"].value
    11.0
    """
    return {name: mean_interval(column, groups) for name, column in columns.items() if column is not None}
