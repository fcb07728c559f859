"""A ROC curve with its band, as the series of a report's figure."""

import numpy as np
import torch
from torch import Tensor

from refiner.metrics import RocCurve, clopper_pearson, roc_curve
from refiner.metrics.tpr_intervals import tpr_intervals
from refiner.report import RocSeries

# More false-positive rates than a figure shows apart; between them the band is interpolated.
_LEVELS = 200


def client_roc_series(name: str, members: Tensor, non_members: Tensor) -> RocSeries:
    """Return the ROC curve of scores that come by client, with 95 % intervals that resample clients.

    Args:
        name: What the curve is called in the figure.
        members: Scores `[V, M]`.
        non_members: Scores `[V, N]`.

    Returns:
        The series; for a single client the band has no width.

    Raises:
        DataError: One of the groups is empty, or a score is NaN.

    >>> scores = torch.arange(40.0).view(10, 4)
    >>> fpr, tpr, low, high = client_roc_series("none", scores + 10, scores).points[14]
    >>> tpr, low < tpr < high
    (0.35, True)
    """
    curve = roc_curve(members, non_members)
    fpr, tpr = curve.fpr.numpy(), curve.tpr.numpy()
    count = non_members.numel()
    levels = np.unique(np.geomspace(1, count, _LEVELS).round().astype(np.int64))
    levels = np.concatenate([[0], levels])
    interval = tpr_intervals(members, non_members, torch.from_numpy(levels))
    if interval is None:
        low = high = tpr
    else:
        # A rate rises with the threshold's FPR: what bounds it at one FPR from below does so at higher ones.
        ends = np.maximum.accumulate(interval[0].numpy()), np.minimum.accumulate(interval[1].numpy()[::-1])
        low = np.interp(fpr * count, levels, ends[0])
        high = np.interp(fpr * count, levels, ends[1][::-1])
    points = zip(fpr.tolist(), tpr.tolist(), low.tolist(), high.tolist(), strict=True)
    return RocSeries(name, list(points))


def roc_series(name: str, curve: RocCurve, positives: int) -> RocSeries:
    """Return the ROC curve of independent scores, with the exact 95 % interval of every true-positive rate.

    Args:
        name: What the curve is called in the figure.
        curve: The rates.
        positives: The number of scores that the true-positive rates are shares of.

    Returns:
        The series.

    >>> from refiner.metrics import roc_curve
    >>> import torch
    >>> curve = roc_curve(torch.tensor([[3.0, 2.0]]), torch.tensor([[2.0, 1.0]]))
    >>> roc_series("none", curve, 2).points[0]
    (0.0, 0.0, 0.0, 0.84...)
    """
    points = []
    for fpr, tpr in zip(curve.fpr.tolist(), curve.tpr.tolist(), strict=True):
        low, high = clopper_pearson(round(tpr * positives), positives)
        points.append((fpr, tpr, low, high))
    return RocSeries(name, points)
