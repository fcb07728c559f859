"""All scores at once, and the direction of each metric."""

import pytest
import torch

from refiner.data import load_sample
from refiner.errors import DataError
from refiner.evaluation import EvaluationNetwork
from refiner.metrics import METRICS, lpips, mse, noise_ratio, psnr, score_all, ssim

IMAGES = load_sample().images[:6]


def test_score_all_has_the_scores_of_each_metric() -> None:
    other = IMAGES.roll(1, 0)
    scores = score_all(other, IMAGES)
    assert list(scores) == ["mse", "psnr", "ssim", "lpips", "noise"]
    for name, metric in (("mse", mse), ("psnr", psnr), ("ssim", ssim), ("lpips", lpips)):
        assert torch.equal(scores[name], metric(other, IMAGES))
    assert torch.equal(scores["noise"], EvaluationNetwork.bundled().score(other))


@pytest.mark.parametrize("name", METRICS)
def test_higher_is_closer_is_right(name: str) -> None:
    metric = METRICS[name]
    copy = metric.function(IMAGES, IMAGES)
    unrelated = metric.function(IMAGES.roll(1, 0), IMAGES)
    assert ((copy > unrelated) if metric.higher_is_closer else (copy < unrelated)).all()


def test_the_noise_ratio_scores_the_reconstruction_alone() -> None:
    """A clean image of something else scores 0."""
    assert noise_ratio(IMAGES.roll(1, 0)).max() < 0.1
    assert noise_ratio(torch.rand(2, 1, 28, 28)).min() > 0.9
    assert noise_ratio(IMAGES.double()).dtype == torch.float64
    with pytest.raises(DataError, match="1 or 3 channels and 28 to 224 pixels per side"):
        noise_ratio(torch.zeros(1, 3, 16, 16))
