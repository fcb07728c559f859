"""Intervals of true-positive rates at low false-positive rates: a bootstrap over clients."""

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from refiner.metrics.roc import check_scores
from refiner.metrics.shares import wilson_interval

RESAMPLES = 2000
# Scores that are counted at once, which bounds the memory for many clients.
_MOST_AT_ONCE = 2**22


def tpr_intervals(members: Tensor, non_members: Tensor, accused: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the 95 % intervals of the TPR at thresholds that accuse at most so many non-members.

    Percentiles of a bootstrap over clients: candidates of one client share an upload and are not independent.
    Every resample chooses its threshold again, because the threshold is one of the non-members' scores. The
    interval always contains the measured rate; where all resamples agree, as they do if no member is found,
    it is Wilson's for as many trials as clients. With very few accused non-members the threshold depends on
    the highest scores alone, which resamples can't replace by higher ones, and the interval is too narrow.
    The resampling uses a fixed seed, so that equal scores give equal intervals.

    Args:
        members: Scores `[V, M]`, higher for what looks like a member.
        non_members: Scores `[V, N]`.
        accused: The most non-members that may score above the threshold, `[L]`, each from 0 to V·N.

    Returns:
        The lower and the upper ends, `[L]` each; None for a single client.

    Raises:
        DataError: One of the groups is empty, or a score is NaN.

    >>> scores = torch.arange(40.0).view(10, 4)
    >>> low, high = tpr_intervals(scores + 10, scores, torch.tensor([4]))
    >>> bool(low < 14 / 40 < high)
    True
    """
    inside, outside = check_scores(members, non_members)
    if len(inside) < 2:
        return None
    ordered, order = outside.flatten().sort(descending=True)
    # After the last non-member nobody is left whom the threshold must spare.
    thresholds = torch.cat([ordered, ordered.new_tensor([-math.inf])])
    ascending = inside.flatten().sort().values
    above = inside.numel() - torch.searchsorted(ascending, thresholds, right=True)
    member_clients = inside.flatten().argsort(descending=True) // inside.shape[1]
    accused = accused.to(torch.int32)
    rates = []
    for draws in torch.split(_draws_of_clients(len(inside)), max(1, _MOST_AT_ONCE // outside.numel())):
        spared_after = draws[:, order // outside.shape[1]].cumsum(1, dtype=torch.int32)
        found = draws[:, member_clients].cumsum(1, dtype=torch.int32)
        found = torch.nn.functional.pad(found, (1, 0))
        first_spared = torch.searchsorted(spared_after, accused.repeat(len(draws), 1), right=True)
        rates.append(found.gather(1, above[first_spared]).double() / inside.numel())
    value = above[accused.long()].double() / inside.numel()
    low, high = torch.cat(rates).quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    low, high = torch.minimum(low, value), torch.maximum(high, value)
    # Who may accuse everyone finds everyone, which is certain.
    for index in torch.nonzero((low == high) & (accused < outside.numel())).flatten().tolist():
        low[index], high[index] = wilson_interval(float(value[index]), len(inside))
    return low, high


@lru_cache(maxsize=2)
def _draws_of_clients(clients: int) -> Tensor:
    """How often every client is drawn in every resample, `[RESAMPLES, V]`."""
    drawn = np.random.default_rng(0).integers(0, clients, (RESAMPLES, clients))
    numbers = drawn + clients * np.arange(RESAMPLES)[:, None]
    counts = np.bincount(numbers.ravel(), minlength=RESAMPLES * clients).reshape(RESAMPLES, clients)
    return torch.from_numpy(counts.astype(np.int32))
