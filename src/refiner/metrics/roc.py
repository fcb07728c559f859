"""The ROC curve of scores that tell members from non-members, and the area under it with its interval.

Scores come by client, `[V, M]` of members and `[V, N]` of non-members: those of one client share an upload
and are not independent, so intervals count clients.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from refiner.errors import DataError
from refiner.metrics.shares import wilson_interval


class RocCurve(NamedTuple):
    """The points of a ROC curve, from (0, 0) to (1, 1)."""

    fpr: Tensor
    """Share of non-members at or above each threshold, `[T]`, rising."""
    tpr: Tensor
    """Share of members at or above it, `[T]`."""


class Estimate(NamedTuple):
    """A number with its 95 % interval; no interval from a single client."""

    value: float
    low: float | None
    high: float | None


def roc_curve(members: Tensor, non_members: Tensor) -> RocCurve:
    """Return the ROC curve: a point for every distinct score, equal scores in one step.

    Args:
        members: Scores `[V, M]`, higher for what looks like a member.
        non_members: Scores `[V, N]`.

    Returns:
        The rates, which depend on the order of the scores only.

    Raises:
        DataError: One of the groups is empty, or a score is NaN.

    >>> curve = roc_curve(torch.tensor([[3.0, 2.0]]), torch.tensor([[2.0, 1.0]]))
    >>> curve.fpr.tolist(), curve.tpr.tolist()
    ([0.0, 0.0, 0.5, 1.0], [0.0, 0.5, 1.0, 1.0])
    """
    inside, outside = check_scores(members, non_members)
    thresholds = torch.unique(torch.cat([inside.flatten(), outside.flatten()])).flip(0)
    tpr, fpr = (_share_at_least(group.flatten(), thresholds) for group in (inside, outside))
    zero = tpr.new_zeros(1)
    return RocCurve(torch.cat([zero, fpr]), torch.cat([zero, tpr]))


def area_under_curve(members: Tensor, non_members: Tensor) -> Estimate:
    """Return the AUC with its 95 % interval, counted by client.

    The AUC is the probability that a member scores higher than a non-member, ties counting half. Its variance
    is that of DeLong, DeLong and Clarke-Pearson (Biometrics 1988) for clustered data (Obuchowski, Biometrics
    1997): a client adds the mean placement of its members and non-members. The interval is symmetric in the
    logit of the AUC, with Student's t for the number of clients; where every client separates perfectly and
    the variance is zero, it is Wilson's for as many trials as clients.

    Args:
        members: Scores `[V, M]`, higher for what looks like a member.
        non_members: Scores `[V, N]`.

    Returns:
        The area and the ends of its interval.

    Raises:
        DataError: One of the groups is empty, or a score is NaN.

    >>> area_under_curve(torch.tensor([[3.0], [2.0]]), torch.tensor([[1.0], [2.0]])).value
    0.875
    """
    inside, outside = check_scores(members, non_members)
    above = _placement(inside.flatten(), outside.flatten()).view_as(inside)
    # The share of members above each non-member.
    below = 1 - _placement(outside.flatten(), inside.flatten()).view_as(outside)
    value, clients = float(above.mean()), len(inside)
    if clients < 2:
        return Estimate(value, None, None)
    influence = above.mean(1) + below.mean(1) - 2 * value
    variance = float(influence.square().sum()) / (clients * (clients - 1))
    if variance < 1e-15 or not 0 < value < 1:
        return Estimate(value, *wilson_interval(min(max(value, 0.0), 1.0), clients))
    from scipy.stats import t

    logit, spread = math.log(value / (1 - value)), math.sqrt(variance) / (value * (1 - value))
    half = float(t.ppf(0.975, clients - 1)) * spread
    return Estimate(value, _logistic(logit - half), _logistic(logit + half))


def check_scores(members: object, non_members: object) -> tuple[Tensor, Tensor]:
    """Return scores of members and non-members in float64 if they can be compared.

    Args:
        members: `[V, M]`.
        non_members: `[V, N]`, of the same clients.

    Raises:
        DataError: A group is empty or of another shape, or a score is NaN.
    """
    for field, scores in (("members", members), ("non_members", non_members)):
        if not isinstance(scores, Tensor) or scores.ndim != 2 or not scores.is_floating_point():
            raise DataError(field=field, value=scores, expected="scores [clients, candidates]")
        if not scores.numel():
            problem = "no scores: a ROC curve needs members and non-members"
            raise DataError(field=field, value=list(scores.shape), problem=problem)
        if bool(scores.isnan().any()):
            raise DataError(field=field, value=scores, expected="scores without NaN")
    assert isinstance(members, Tensor) and isinstance(non_members, Tensor)
    if len(members) != len(non_members):
        expected = f"those of the same {len(members)} clients"
        raise DataError(field="non_members", value=list(non_members.shape), expected=expected)
    return members.detach().double().cpu(), non_members.detach().double().cpu()


def _share_at_least(scores: Tensor, thresholds: Tensor) -> Tensor:
    ordered = scores.sort().values
    return 1 - torch.searchsorted(ordered, thresholds, side="left").double() / len(ordered)


def _placement(scores: Tensor, others: Tensor) -> Tensor:
    """The share of `others` below each score, ties counting half."""
    ordered = others.sort().values
    scores = scores.contiguous()  # searchsorted warns otherwise
    lower = torch.searchsorted(ordered, scores, side="left")
    upper = torch.searchsorted(ordered, scores, side="right")
    return (lower + upper).double() / (2 * len(others))


def _logistic(value: float) -> float:
    return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
