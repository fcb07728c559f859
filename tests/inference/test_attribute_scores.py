"""Scores of attribute inference against exact values, and the coverage of their intervals."""

import math

import pytest
import torch
from scipy.stats import mannwhitneyu

from refiner.errors import DataError
from refiner.inference import auc_interval, balanced_accuracy, explained_variance
from refiner.inference.attribute_scores import auc_variance, best_threshold


def test_the_area_is_the_mann_whitney_statistic_with_ties() -> None:
    scores, positive = torch.randint(0, 6, (40,)).double(), torch.arange(40) % 3 == 0
    statistic = mannwhitneyu(scores[positive], scores[~positive]).statistic
    assert auc_interval(scores, positive).value == pytest.approx(
        statistic / (positive.sum() * (~positive).sum())
    )


def test_the_interval_ends_where_the_standard_error_explains_the_distance() -> None:
    scores, positive = torch.randn(50) + torch.arange(50) % 2, torch.arange(50) % 2 == 1
    found = auc_interval(scores, positive)
    for end in (found.low, found.high):
        error = math.sqrt(auc_variance(end, 25, 25))
        assert abs(found.value - end) == pytest.approx(1.959964 * error, rel=1e-6)
    separated = auc_interval(torch.arange(8.0), torch.arange(8) >= 4)
    assert separated.value == separated.high == 1 and 0.4 < separated.low < 0.8


def test_intervals_of_chance_contain_a_half_nineteen_times_in_twenty() -> None:
    positive = torch.arange(60) < 20
    inside = 0
    for _ in range(300):
        found = auc_interval(torch.randn(60), positive)
        inside += found.low <= 0.5 <= found.high
    assert 274 <= inside <= 296


def test_balanced_accuracy_weighs_both_values_equally() -> None:
    positive = torch.arange(100) < 10
    always = balanced_accuracy(torch.zeros(100, dtype=torch.bool), positive)
    assert always.value == 0.5 and always.low < 0.5 < always.high
    right = balanced_accuracy(positive, positive)
    assert right.value == right.high == 1 and right.low < 0.9
    assert best_threshold(torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 1, 1])) == 0.5


def test_explained_variance_is_one_if_exact_and_zero_for_the_guess() -> None:
    actual = torch.rand(50)
    assert explained_variance(actual, actual, 0.5).low == 1
    guess = explained_variance(torch.full((50,), 0.5), actual, 0.5)
    assert guess.value == guess.low == guess.high == 0
    by_hand = explained_variance(actual + 0.1, actual, 0.5).value
    assert by_hand == pytest.approx(1 - 0.5 / float((actual.double() - 0.5).square().sum()), rel=1e-4)


def test_clients_of_one_value_are_one_line() -> None:
    for score in (auc_interval, balanced_accuracy):
        with pytest.raises(DataError, match="attribute = 1: expected clients with both values"):
            score(torch.rand(3), torch.ones(3))
    with pytest.raises(DataError, match="expected two or more clients with different shares"):
        explained_variance(torch.rand(3), torch.full((3,), 0.5), 0.5)
