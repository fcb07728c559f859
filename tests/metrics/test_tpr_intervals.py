"""Intervals of the TPR against a plain loop over resamples, and how often they contain the exact rate."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm
from torch import Tensor

from refiner.metrics import area_under_curve, clopper_pearson, tpr_at_fpr
from refiner.metrics.tpr_intervals import RESAMPLES, tpr_intervals


def clients_with_offsets(clients: int, each: int, shift: float, seed: int) -> tuple[Tensor, Tensor]:
    """Scores with variance 1.5: candidates of one client share an offset of variance 0.5."""
    generator = torch.Generator().manual_seed(seed)
    offset = torch.randn(clients, 1, generator=generator) / math.sqrt(2)
    pair = torch.randn(2, clients, each, generator=generator) + offset
    return pair[0] + shift, pair[1]


@pytest.mark.parametrize("accused", [0, 2, 24])
def test_the_interval_is_that_of_a_loop_over_resamples(accused: int) -> None:
    # Rounded, so that there are ties.
    members, non_members = (scores.round(decimals=1) for scores in clients_with_offsets(6, 4, 1.0, seed=2))
    inside, outside = members.tolist(), non_members.tolist()
    rates = []
    for drawn in np.random.default_rng(0).integers(0, 6, (RESAMPLES, 6)).tolist():
        others = sorted((score for client in drawn for score in outside[client]), reverse=True)
        threshold = others[accused] if accused < len(others) else -math.inf
        rates.append(sum(score > threshold for client in drawn for score in inside[client]) / 24)
    low, high = np.quantile(rates, [0.025, 0.975])
    found = tpr_intervals(members, non_members, torch.tensor([7, accused]))
    assert found is not None
    assert (float(found[0][1]), float(found[1][1])) == pytest.approx((low, high))


def test_intervals_contain_the_exact_rate_as_often_as_they_say() -> None:
    """Candidates of a client share an offset: an interval that counts them as independent fails."""
    deviation = math.sqrt(1.5)
    exact = norm.sf((norm.isf(0.1) * deviation - 1.5) / deviation)
    by_client = by_candidate = 0
    for seed in range(50):
        found = tpr_at_fpr(*clients_with_offsets(20, 10, 1.5, seed), 0.1)
        assert found.low is not None and found.high is not None
        by_client += found.low <= exact <= found.high
        low, high = clopper_pearson(found.count, found.total)
        by_candidate += low <= exact <= high
    assert binom.cdf(by_client, 50, 0.95) > 0.001
    assert binom.cdf(by_candidate, 50, 0.95) < 0.001


def test_agreement_of_all_resamples_is_no_certainty() -> None:
    none = tpr_at_fpr(torch.zeros(20, 3), torch.ones(20, 3), 0.1)
    assert (none.count, none.low) == (0, 0.0) and none.high == pytest.approx(0.161, abs=1e-3)


def test_one_client_has_no_interval() -> None:
    single = tpr_at_fpr(torch.ones(1, 3), torch.zeros(1, 3), 0.1)
    assert single.value == 1 and single.low is None and single.high is None
    assert area_under_curve(torch.ones(1, 3), torch.zeros(1, 3)).low is None


def test_memory_is_bounded_without_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, accused = clients_with_offsets(8, 4, 1.0, seed=0), torch.arange(33)
    whole = tpr_intervals(*scores, accused)
    monkeypatch.setattr("refiner.metrics.tpr_intervals._MOST_AT_ONCE", 700 * 32)
    parts = tpr_intervals(*scores, accused)
    assert whole is not None and parts is not None
    assert torch.equal(whole[0], parts[0]) and torch.equal(whole[1], parts[1])
