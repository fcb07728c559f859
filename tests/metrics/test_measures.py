"""All scores at once are the scores one by one."""

import pytest
import torch

from refiner.data import load_sample
from refiner.errors import DataError
from refiner.evaluation import EvaluationNetwork
from refiner.metrics import MEASURES, lpips, measure_all, mse, noise_ratio, psnr, ssim

PICTURES = load_sample().images[:6]


def test_every_score_by_its_name() -> None:
    other = PICTURES.roll(1, 0)
    found = measure_all(other, PICTURES)
    assert list(found) == ["mse", "psnr", "ssim", "lpips", "noise"]
    for name, metric in (("mse", mse), ("psnr", psnr), ("ssim", ssim), ("lpips", lpips)):
        assert torch.equal(found[name], metric(other, PICTURES))
    assert torch.equal(found["noise"], EvaluationNetwork.bundled().score(other))


@pytest.mark.parametrize("name", MEASURES)
def test_the_direction_is_right(name: str) -> None:
    measure = MEASURES[name]
    near = measure.compare(PICTURES, PICTURES)
    far = measure.compare(PICTURES.roll(1, 0), PICTURES)
    assert ((near > far) if measure.higher_is_nearer else (near < far)).all()


def test_noise_looks_at_the_reconstruction_alone() -> None:
    """A clean image of something else is no noise."""
    assert noise_ratio(PICTURES.roll(1, 0)).max() < 0.1
    assert noise_ratio(torch.rand(2, 1, 28, 28)).min() > 0.9
    assert noise_ratio(PICTURES.double()).dtype == torch.float64
    with pytest.raises(DataError, match="takes 1 or 3 channels and 28 to 224 pixels a side"):
        noise_ratio(torch.zeros(1, 3, 16, 16))
