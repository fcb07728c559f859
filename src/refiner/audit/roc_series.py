"""A ROC curve with its band, as the series of a report's figure."""

from refiner.metrics import RocCurve, clopper_pearson
from refiner.report import RocSeries


def roc_series(name: str, curve: RocCurve, positives: int) -> RocSeries:
    """Return a ROC curve with the exact 95 % interval of every true-positive rate.

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
