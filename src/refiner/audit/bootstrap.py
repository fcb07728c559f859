"""Means over images with bootstrap confidence intervals."""

from collections.abc import Mapping, Sequence

import numpy as np

from refiner.audit.result_records import Mean

RESAMPLES = 2000


def mean_interval(values: Sequence[float], victims: int) -> Mean:
    """Return the mean and its 95 % interval, a percentile bootstrap over `victims` with equally many values.

    Victims are resampled, not images: images of one batch share an upload and are not independent. The
    resampling uses a fixed seed, so that equal values give equal intervals.

    >>> mean_interval([1.0, 2.0, 3.0, 4.0], victims=4)
    Mean(value=2.5, low=1.5, high=3.5)
    >>> mean_interval([1.0, 2.0], victims=1)
    Mean(value=1.5, low=None, high=None)
    """
    victim_means = np.asarray(values, dtype=np.float64).reshape(victims, -1).mean(1)
    value = float(victim_means.mean())
    if victims < 2:
        return Mean(value, None, None)
    draws = np.random.default_rng(0).integers(0, victims, (RESAMPLES, victims))
    low, high = np.quantile(victim_means[draws].mean(1), (0.025, 0.975))
    return Mean(value, float(low), float(high))


def column_means(columns: Mapping[str, Sequence[float] | None], victims: int) -> dict[str, Mean]:
    """Return the mean of every column that is not None.

    >>> column_means({"psnr": [10.0, 12.0], "lpips": None}, victims=2)["psnr"].value
    11.0
    """
    return {name: mean_interval(column, victims) for name, column in columns.items() if column is not None}
