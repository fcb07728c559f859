"""Bands of ROC curves: those of the operating points, by client, around the curve."""

import pytest
import torch
from tests.metrics.test_tpr_intervals import clients_with_offsets

from refiner.audit.roc_series import client_roc_series
from refiner.metrics import tpr_at_fpr
from refiner.report import RocPlot


def test_the_band_is_the_interval_of_the_rate_at_each_fpr() -> None:
    members, non_members = clients_with_offsets(25, 8, 1.0, seed=0)
    points = client_roc_series("none", members, non_members).points
    for fpr in (0.01, 0.05, 0.1):
        found = tpr_at_fpr(members, non_members, fpr)
        # The highest point of the vertical line at this FPR.
        _, tpr, low, high = max(point for point in points if point[0] <= fpr + 1e-9)
        assert (tpr, low, high) == pytest.approx((found.value, found.low, found.high))


@pytest.mark.parametrize("shift", [-3.0, 0.0, 2.0, 20.0])
def test_the_band_rises(shift: float) -> None:
    points = torch.tensor(client_roc_series("none", *clients_with_offsets(20, 30, shift, seed=1)).points)
    assert bool((points.diff(dim=0) > -1e-6).all())


def test_one_client_has_no_band() -> None:
    series = client_roc_series("gq", *clients_with_offsets(1, 5, 1.0, seed=0))
    assert all(low == tpr == high for _, tpr, low, high in series.points)
    assert "Solid: gq; dotted" in RocPlot("Members", [series]).html("roc")
