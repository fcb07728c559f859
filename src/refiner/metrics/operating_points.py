"""Rates at one threshold of a ROC curve: the TPR at a low FPR, and balanced accuracy."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from refiner import checks
from refiner.metrics.roc import check_scores
from refiner.metrics.tpr_intervals import tpr_intervals


@dataclass(frozen=True)
class TprAtFpr:
    """The share of members that are found while at most a given share of non-members is accused."""

    fpr: float
    """The false-positive rate that was asked for."""
    measured_fpr: float
    """The one of the threshold, at most as high; 0 where there are fewer non-members than 1 / fpr."""
    count: int
    """Members above the threshold."""
    total: int
    low: float | None
    """The lower end of the 95 % interval of the TPR; None for a single client."""
    high: float | None

    @property
    def value(self) -> float:
        """The TPR."""
        return self.count / self.total


def tpr_at_fpr(members: Tensor, non_members: Tensor, fpr: float) -> TprAtFpr:
    """Return the TPR at the lowest threshold whose FPR is at most `fpr`.

    Its interval is a bootstrap over clients in which every resample chooses its threshold again; see
    `refiner.metrics.tpr_intervals`.

    Args:
        members: Scores `[V, M]`, higher for what looks like a member.
        non_members: Scores `[V, N]`.
        fpr: The highest false-positive rate, in (0, 1).

    Returns:
        The rate with its interval.

    Raises:
        DataError: One of the groups is empty, or a score is NaN.
        SettingError: `fpr` is out of its range.

    >>> scores = torch.arange(200.0)[None]
    >>> tpr_at_fpr(scores + 10, scores, 0.01).count
    12
    """
    checks.number("fpr", fpr, 0, 1, above=True)
    inside, outside = check_scores(members, non_members)
    allowed = math.floor(fpr * outside.numel() + 1e-9)
    ordered = outside.flatten().sort(descending=True).values
    # Found is who scores higher than the first non-member that must not be accused.
    threshold = ordered[allowed] if allowed < len(ordered) else ordered.new_tensor(-math.inf)
    count, accused = int((inside > threshold).sum()), int((outside > threshold).sum())
    interval = tpr_intervals(inside, outside, torch.tensor([allowed]))
    low, high = (None, None) if interval is None else (float(end) for end in interval)
    return TprAtFpr(fpr, accused / outside.numel(), count, inside.numel(), low, high)


def balanced_accuracies(members: Tensor, non_members: Tensor) -> Tensor | None:
    """Return every client's balanced accuracy at a threshold that other clients chose, `[V]`.

    The clients are halved, and each half is judged by the threshold with the highest balanced accuracy in the
    other one: a threshold chosen on the scores that it is judged by would find members in pure chance.

    Args:
        members: Scores `[V, M]`, higher for what looks like a member.
        non_members: Scores `[V, N]`.

    Returns:
        The mean of TPR and TNR of each client, 0.5 by chance; None for a single client.

    Raises:
        DataError: One of the groups is empty, or a score is NaN.

    >>> balanced_accuracies(torch.tensor([[3.0], [4.0]]), torch.tensor([[1.0], [2.0]])).tolist()
    [0.5, 1.0]
    """
    inside, outside = check_scores(members, non_members)
    if len(inside) < 2:
        return None
    found = torch.empty(len(inside), dtype=torch.float64)
    for half in (0, 1):
        threshold = _best_threshold(inside[1 - half :: 2].flatten(), outside[1 - half :: 2].flatten())
        rates = [(scores[half::2] >= threshold).double().mean(1) for scores in (inside, outside)]
        found[half::2] = (rates[0] + 1 - rates[1]) / 2
    return found


def clopper_pearson(count: int, total: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a share.

    Clopper and Pearson, "The use of confidence or fiducial limits illustrated in the case of the binomial",
    Biometrika, 1934.

    Args:
        count: Successes.
        total: Independent trials.

    Returns:
        The ends of the interval.

    Raises:
        SettingError: A number is out of its range.

    >>> [round(end, 3) for end in clopper_pearson(0, 100)]
    [0.0, 0.036]
    """
    checks.integer("total", total, 1)
    checks.integer("count", count, 0, total)
    from scipy.stats import beta

    low = float(beta.ppf(0.025, count, total - count + 1)) if count else 0.0
    high = float(beta.ppf(0.975, count + 1, total - count)) if count < total else 1.0
    return low, high


def _best_threshold(inside: Tensor, outside: Tensor) -> Tensor:
    """The score with the largest TPR − FPR for those at or above it."""
    thresholds = torch.unique(torch.cat([inside, outside]))
    rates = [1 - torch.searchsorted(s.sort().values, thresholds).double() / len(s) for s in (inside, outside)]
    best: Tensor = thresholds[(rates[0] - rates[1]).argmax()]
    return best
