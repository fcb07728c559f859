"""The predicted PSNR against the closed form for Gaussian data, and its warning."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from refiner.data import load_images, load_sample
from refiner.defenses import Refiner
from refiner.errors import DataError, SettingError
from refiner.metrics import psnr
from refiner.shaped_noise import NaturalNoise, predict_psnr, wiener_estimate


@pytest.mark.parametrize("strength", [0.5, 1.0, 2.0])
def test_of_gaussian_images_s2_over_1_plus_s2_of_the_variance_stays_unexplained(strength: float) -> None:
    statistics = copy.deepcopy(NaturalNoise.bundled()).double()
    draws = torch.randn(2, 400, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    # A tenth of the contrast, so that almost no pixel leaves 0..1.
    images = 0.5 + 0.1 * statistics(draws[0])
    quiet = NaturalNoise(0.01 * statistics.covariance, torch.full_like(statistics.mean, 0.5))
    noisy = images + strength * quiet(draws[1])
    estimate = wiener_estimate(noisy, quiet, strength**2 * quiet.covariance)
    unexplained = (estimate - images).square().mean() / (images - quiet.mean).square().mean()
    assert float(unexplained) == pytest.approx(strength**2 / (1 + strength**2), rel=0.03)


def test_no_other_linear_filter_does_better_than_the_wiener_estimate() -> None:
    images = load_sample().images
    data, noise = NaturalNoise.fit(images), NaturalNoise.bundled()
    noisy = images + 2 * noise(torch.randn(images.shape, generator=torch.Generator().manual_seed(0)))
    best = psnr(wiener_estimate(noisy, data, 4 * noise.covariance), images).mean()
    for wrong in (1.0, 16.0):
        assert psnr(wiener_estimate(noisy, data, wrong * noise.covariance), images).mean() < best


def test_the_default_noise_is_that_of_the_defence() -> None:
    images, defense = load_sample().images, Refiner()
    assert predict_psnr(images) == predict_psnr(images, strength=defense.alpha, white=defense.white)


def test_more_noise_leaves_less_and_weak_noise_is_warned_about() -> None:
    images = load_sample().images
    predictions = [predict_psnr(images, strength=strength) for strength in (0.5, 1.0, 2.0, 4.0)]
    values = [prediction.wiener_psnr for prediction in predictions]
    assert values == sorted(values, reverse=True)
    assert predictions[0].warning is not None and "refiner noise fit" in predictions[0].warning
    assert predictions[3].warning is None


def test_noise_of_other_statistics_is_warned_about() -> None:
    """White noise of the same power is removed by a filter."""
    flat = torch.eye(3).mul(0.0625).expand(32, 32, 3, 3).contiguous()
    white = NaturalNoise(flat, torch.full((3, 32, 32), 0.5))
    images = load_sample().images
    assert predict_psnr(images, white, strength=2).warning is not None
    assert predict_psnr(images, strength=2).warning is None


def test_a_white_part_leaves_less() -> None:
    """Filters that know the whole noise: the white part hides what tells images apart, not their colours."""
    images = load_sample().images
    plain, mixed = (predict_psnr(images, strength=1, white=white) for white in (0.0, 1.0))
    assert mixed.wiener_psnr < plain.wiener_psnr and mixed.visible <= plain.visible
    assert mixed.whitened_distance < 0.5 * plain.whitened_distance


def test_faces_need_more_noise_than_other_images(data_dir: Callable[[str], Path]) -> None:
    """Audits found 33 % of LFW visible without a white part, none with: docs/results/other-images.md."""
    faces = load_images("lfw", root=data_dir("lfw_labels.npz"), limit=600)
    plain, default, strong = (
        predict_psnr(faces, strength=strength, white=white)
        for strength, white in ((3.0, 0.0), (3.0, 0.6), (5.0, 0.6))
    )
    assert plain.visible == pytest.approx(0.3, abs=0.1) and default.visible < 0.4 * plain.visible
    assert plain.warning is not None and "of these images visible to a linear estimate" in plain.warning
    assert strong.visible < 0.01 and strong.warning is None
    assert predict_psnr(load_sample().images, strength=3).visible == 0


def test_too_few_images_raise() -> None:
    with pytest.raises(DataError, match="images = 10: expected 200 images or more"):
        predict_psnr(torch.rand(10, 3, 32, 32))


@pytest.mark.parametrize("seed", [-1, 2**63, 1.5])
def test_a_wrong_seed_is_one_line(seed: int) -> None:
    with pytest.raises(SettingError, match=rf"^seed = {seed}: expected an integer[^\n]*$"):
        predict_psnr(torch.rand(200, 3, 32, 32), seed=seed)
