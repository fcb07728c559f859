"""Scores of an attribute's inference, each with its 95 % interval over clients."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from refiner.errors import DataError
from refiner.metrics.roc import area_under_curve
from refiner.metrics.shares import wilson_interval

_Z = 1.959963984540054
_RESAMPLES = 2000


@dataclass(frozen=True)
class Interval:
    """A measured value with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def auc_interval(scores: Tensor, positive: Tensor) -> Interval:
    """Return the area under the ROC curve with its score interval.

    Newcombe, "Confidence intervals for an effect size measure based on the Mann–Whitney statistic. Part 2",
    Statistics in Medicine, 2006 (method 5): the values θ whose standard error explains the distance to the
    measured area. Unlike DeLong's it has a length where the scores separate all clients.

    Args:
        scores: `[V]`, higher where the attribute is more likely.
        positive: Whether a client has the attribute, `[V]`; some have it and some don't.

    Returns:
        The area, and the ends.

    Raises:
        DataError: All clients have the same value.

    >>> auc_interval(torch.arange(20.0), torch.arange(20) >= 10)
    Interval(value=1.0, low=0.80..., high=1.0)
    """
    with_it, without = _by_value(scores.double(), positive)
    area, ones, zeros = area_under_curve(with_it[None], without[None]).value, len(with_it), len(without)

    def is_explained(theta: float) -> bool:
        return abs(area - theta) <= _Z * math.sqrt(auc_variance(theta, ones, zeros))

    def end(inside: float, outside: float) -> float:
        if is_explained(outside):
            return outside
        for _ in range(60):
            middle = (inside + outside) / 2
            inside, outside = (middle, outside) if is_explained(middle) else (inside, middle)
        return inside

    return Interval(area, end(area, 0.0), end(area, 1.0))


def auc_variance(theta: float, ones: int, zeros: int) -> float:
    """Return the variance of the area under the curve of a method whose true area is `theta`.

    Hanley and McNeil, Radiology 1982, with both numbers of clients replaced by their mean in the bracket.

    Args:
        theta: The true area.
        ones: Clients with the attribute.
        zeros: Clients without it.

    Returns:
        The variance; for θ = 0.5 and equal numbers the exact one of the Mann–Whitney statistic.

    >>> math.isclose(auc_variance(0.5, 10, 10), 21 / 1200)
    True
    """
    more = (ones + zeros) / 2 - 1
    bracket = 1 + more * ((1 - theta) / (2 - theta) + theta / (1 + theta))
    return theta * (1 - theta) * bracket / (ones * zeros)


def balanced_accuracy(predicted: Tensor, positive: Tensor) -> Interval:
    """Return the mean of the shares of right answers among clients with and without the attribute.

    Its interval combines the Wilson intervals of both shares (Zou and Donner, Statistics in Medicine, 2008).

    Args:
        predicted: The answers, bool `[V]`.
        positive: Whether a client has the attribute, `[V]`.

    Returns:
        The balanced accuracy: 0.5 by chance.

    Raises:
        DataError: All clients have the same value.

    >>> str(balanced_accuracy(torch.arange(20) >= 10, torch.arange(20) >= 10))
    '1.00 (0.80 to 1.00)'
    """
    parts = _by_value(predicted.bool() == positive.bool(), positive)
    shares = [float(part.double().mean()) for part in parts]
    ends = [wilson_interval(share, len(part)) for share, part in zip(shares, parts, strict=True)]
    below = math.hypot(*(share - low for share, (low, _) in zip(shares, ends, strict=True))) / 2
    above = math.hypot(*(high - share for share, (_, high) in zip(shares, ends, strict=True))) / 2
    value = sum(shares) / 2
    return Interval(value, max(0.0, value - below), min(1.0, value + above))


def explained_variance(predicted: Tensor, actual: Tensor, blind: float) -> Interval:
    """Return R², the part of a blind guess's squared error that predictions remove.

    Args:
        predicted: `[V]`.
        actual: `[V]`.
        blind: The guess that uses no upload, such as the mean in public data.

    Returns:
        1 for exact predictions, 0 for none better than the guess, below 0 for worse; with a percentile
        bootstrap over the clients.

    Raises:
        DataError: There are fewer than two clients, or the guess is exact.

    >>> explained_variance(torch.tensor([0.0, 1.0, 0.5]), torch.tensor([0.0, 1.0, 0.5]), 0.3).value
    1.0
    """
    errors = (predicted - actual).double().square().numpy()
    guesses = (actual.double() - blind).square().numpy()
    if len(errors) < 2 or not guesses.any():
        raise DataError(field="attribute", value=actual, expected="two or more clients with different shares")
    draws = np.random.default_rng(0).integers(0, len(errors), (_RESAMPLES, len(errors)))
    ratios = errors[draws].sum(1) / np.maximum(guesses[draws].sum(1), 1e-12)
    low, high = np.quantile(1 - ratios, (0.025, 0.975))
    return Interval(float(1 - errors.sum() / guesses.sum()), float(low), float(high))


def best_threshold(scores: Tensor, positive: Tensor) -> float:
    """Return the score above which "has the attribute" is right most often, balanced over both values.

    Args:
        scores: Scores of clients whose attribute is known, `[V]`.
        positive: Whether they have it.

    Returns:
        The middle between two scores, so that equal scores are never separated.

    >>> best_threshold(torch.tensor([0.0, 0.25, 0.75, 1.0]), torch.tensor([0, 0, 1, 1]))
    0.5
    """
    ordered = torch.tensor(sorted(set(scores.double().tolist())), dtype=torch.float64)
    candidates = torch.cat([ordered[:1] - 1, (ordered[1:] + ordered[:-1]) / 2, ordered[-1:] + 1])
    above = scores.double()[None] > candidates[:, None]
    positive = positive.bool()
    rates = above[:, positive].double().mean(1) + (~above[:, ~positive]).double().mean(1)
    return float(candidates[rates.argmax()])


def _by_value(values: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """The values of the clients with the attribute, and of those without it; raises if there are none."""
    positive = positive.bool()
    if bool(positive.all()) or not bool(positive.any()):
        raise DataError(field="attribute", value=int(positive.any()), expected="clients with both values")
    return values[positive], values[~positive]
