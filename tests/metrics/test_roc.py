"""ROC curves, AUC and rates against torchmetrics, closed forms, and properties."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, norm
from torch import Tensor
from torchmetrics.functional.classification import binary_auroc, binary_roc

from refiner.errors import DataError
from refiner.metrics.operating_points import balanced_accuracies, clopper_pearson, tpr_at_fpr
from refiner.metrics.roc import area_under_curve, roc_curve

SCORES = st.lists(st.integers(-6, 6), min_size=2, max_size=12).map(
    lambda values: torch.tensor(values[: len(values) // 2 * 2], dtype=torch.float64).view(2, -1)
)


def draws(shift: float, clients: int, each: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pair = torch.randn(2, clients, each, generator=generator, dtype=torch.float64)
    return pair[0] + shift, pair[1]


def test_curve_and_area_are_those_of_torchmetrics() -> None:
    # Rounded, so that there are ties; in (0, 1), where torchmetrics does not change them.
    members, non_members = ((scores.round() / 20 + 0.5).clamp(0, 1) for scores in draws(0.7, 5, 40, seed=3))
    scores = torch.cat([members.flatten(), non_members.flatten()])
    truth = torch.cat([torch.ones(members.numel()), torch.zeros(non_members.numel())]).long()
    curve = roc_curve(members, non_members)
    fpr, tpr, _ = binary_roc(scores, truth)
    torch.testing.assert_close(curve.fpr, fpr.double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(curve.tpr, tpr.double(), atol=1e-6, rtol=0)
    area = float(binary_auroc(scores, truth))
    assert area_under_curve(members, non_members).value == pytest.approx(area, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(SCORES, SCORES)
def test_only_the_order_of_scores_counts(members: Tensor, non_members: Tensor) -> None:
    first = area_under_curve(members, non_members)
    assert area_under_curve(members.exp(), non_members.exp()) == pytest.approx(first)
    assert tpr_at_fpr(members.exp(), non_members.exp(), 0.2) == tpr_at_fpr(members, non_members, 0.2)
    negative = area_under_curve(-members, -non_members)
    assert negative.value == pytest.approx(1 - first.value)
    assert first.low is not None and first.high is not None and negative.high is not None
    assert negative.high == pytest.approx(1 - first.low)
    assert 0 <= first.low <= first.value <= first.high <= 1


def test_the_area_of_two_gaussians() -> None:
    members, non_members = draws(1.0, 200, 50, seed=0)
    estimate = area_under_curve(members, non_members)
    exact = norm.cdf(1 / math.sqrt(2))
    assert estimate.low is not None and estimate.high is not None
    assert estimate.low < exact < estimate.high and estimate.high - estimate.low < 0.02
    found = tpr_at_fpr(members, non_members, 0.01)
    assert found.low is not None and found.high is not None
    assert found.low - 0.01 < norm.sf(norm.isf(0.01) - 1) < found.high + 0.01
    assert found.measured_fpr == 0.01
    accuracies = balanced_accuracies(members, non_members)
    assert accuracies is not None and float(accuracies.mean()) == pytest.approx(norm.cdf(0.5), abs=0.01)


def test_intervals_contain_chance_as_often_as_they_say() -> None:
    """Scores of one client share an offset: intervals that ignored it would contain 0.5 less often."""
    contained = 0
    for seed in range(300):
        members, non_members = draws(0.0, 20, 4, seed)
        generator = torch.Generator().manual_seed(seed + 1000)
        members = members + 2 * torch.randn(20, 1, generator=generator)
        estimate = area_under_curve(members, non_members)
        assert estimate.low is not None and estimate.high is not None
        contained += estimate.low <= 0.5 <= estimate.high
    low, high = binom.ppf([0.001, 0.999], 300, 0.95)
    assert low <= contained <= high


def test_a_threshold_of_other_clients_finds_nothing_in_chance() -> None:
    accuracies = balanced_accuracies(*draws(0.0, 400, 5, seed=1))
    assert accuracies is not None and float(accuracies.mean()) == pytest.approx(0.5, abs=0.03)
    assert balanced_accuracies(*draws(0.0, 1, 5, seed=1)) is None


def test_perfect_separation_has_an_interval_of_the_number_of_clients() -> None:
    perfect = area_under_curve(torch.ones(20, 3), torch.zeros(20, 3))
    assert (perfect.value, perfect.high) == (1.0, 1.0) and perfect.low == pytest.approx(0.839, abs=1e-3)
    assert area_under_curve(torch.ones(1, 3), torch.zeros(1, 3)).low is None


@pytest.mark.parametrize("count", [0, 1, 7, 50])
def test_exact_intervals_have_the_tails_of_the_binomial(count: int) -> None:
    low, high = clopper_pearson(count, 50)
    assert low == 0 if count == 0 else binom.sf(count - 1, 50, low) == pytest.approx(0.025)
    assert high == 1 if count == 50 else binom.cdf(count, 50, high) == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("members", "non_members", "message"),
    [
        (torch.ones(2, 3), torch.ones(2, 0), "non_members = .*no scores: a ROC curve needs members and non"),
        (torch.ones(2, 3), torch.ones(1, 3), "expected those of the same 2 clients"),
        (torch.full((2, 3), math.nan), torch.ones(2, 3), "expected scores without NaN"),
        (torch.ones(3), torch.ones(3), r"expected scores \[clients, candidates\]"),
    ],
)
def test_wrong_scores_are_one_line(members: Tensor, non_members: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message):
        area_under_curve(members, non_members)
