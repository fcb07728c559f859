"""Mixing images with noise, and the predictions of the bundled network on real data."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refiner.data import load_data, load_sample
from refiner.evaluation import EvaluationNetwork, mix_with_noise, score_noise_ratios
from refiner.evaluation.noise_mixing import RATIOS


def test_ratios_0_and_1_are_the_image_and_pure_noise() -> None:
    images = torch.rand(2, 3, 8, 8)
    assert torch.equal(mix_with_noise(images, 0.0, torch.Generator().manual_seed(1)), images)
    noise = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    assert torch.equal(mix_with_noise(images, 1.0, torch.Generator().manual_seed(1)), noise)


@settings(max_examples=30)
@given(ratio=st.floats(0, 1), seed=st.integers(0, 2**31))
def test_mixing_is_linear_and_stays_in_range(ratio: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    images = torch.rand(2, 1, 4, 4, generator=draw, dtype=torch.float64)
    noise = mix_with_noise(torch.zeros_like(images), 1.0, draw.manual_seed(seed))
    mixed = mix_with_noise(images, ratio, draw.manual_seed(seed))
    torch.testing.assert_close(mixed, images + ratio * (noise - images))
    assert mixed.min() >= 0 and mixed.max() <= 1 and mixed.dtype == torch.float64


def test_each_image_may_have_its_own_ratio() -> None:
    images = torch.rand(3, 1, 4, 4)
    mixed = mix_with_noise(
        images, torch.tensor([0.0, 0.5, 1.0]).view(3, 1, 1, 1), torch.Generator().manual_seed(2)
    )
    assert torch.equal(mixed[0], images[0])
    assert not torch.equal(mixed[1], images[1])


def test_each_image_has_its_own_noise() -> None:
    noise = mix_with_noise(torch.zeros(2, 3, 8, 8), 1.0, torch.Generator().manual_seed(0))
    assert not torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[0, 0], noise[0, 1])


def test_scores_are_seeded_and_lower_for_an_untrained_network() -> None:
    images = load_sample().images[:3]
    trained = score_noise_ratios(EvaluationNetwork.bundled(), images)
    assert trained == score_noise_ratios(EvaluationNetwork.bundled(), images, seed=0)
    assert trained != score_noise_ratios(EvaluationNetwork.bundled(), images, seed=1)
    assert trained.ratios == RATIOS[1:-1] == tuple(i / 10 for i in range(1, 10))
    assert len(trained.mean_prediction) == 9
    assert max(abs(p - r) for p, r in zip(trained.mean_prediction, trained.ratios, strict=True)) < 0.05
    untrained = score_noise_ratios(EvaluationNetwork(), images)
    assert untrained.mean_absolute_error > 5 * trained.mean_absolute_error
    assert untrained.rising_share < 0.99


@pytest.mark.parametrize("name", ["cifar10", "svhn", "cifar100", "path", "ham10000"])
def test_predictions_on_datasets_not_used_for_training(data_dir: Callable[[str], Path], name: str) -> None:
    images = load_data(name, "test", root=data_dir(name), limit=8).images
    assert len(images) == 8
    scores = score_noise_ratios(EvaluationNetwork.bundled(), images.float() / 255)
    assert scores.mean_absolute_error <= 0.03
    assert scores.rising_share >= 0.99
