"""PM: the evaluation network's noise ratio and its ablation, MSE, per victim."""

import pytest
import torch
from torch import Tensor

from refiner.defenses.refine.privacy import noise_ratio, squared_error
from refiner.evaluation.network import EvaluationNetwork


def victims(images: tuple[Tensor, Tensor]) -> Tensor:
    """Three victims with two images each."""
    return images[0][:6, 0].unflatten(0, (3, 2))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
def test_the_noise_ratio_is_the_mean_of_d_for_any_input_range(
    images: tuple[Tensor, Tensor], low: float, high: float
) -> None:
    network, x = EvaluationNetwork.bundled(), victims(images)
    x = torch.cat([x[:1], 0.5 * x[1:] + 0.5 * torch.rand_like(x[1:])])
    ratios = noise_ratio(network, low + (high - low) * x, low, high)
    each = network.score(x.flatten(0, 1).float())
    expected = torch.stack([(each[2 * v] + each[2 * v + 1]) / 2 for v in range(3)]).double()
    assert ratios.dtype == x.dtype
    assert expected.max() - expected.min() > 0.1
    torch.testing.assert_close(ratios, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 3.0)])
def test_the_squared_error_is_the_mean_over_pixels_in_units_of_the_range(
    images: tuple[Tensor, Tensor], low: float, high: float
) -> None:
    x = victims(images)
    real, robust = (low + (high - low) * t for t in (x, x.flip(-1)))
    for victim, error in enumerate(squared_error(robust, real, low, high)):
        torch.testing.assert_close(error, torch.nn.functional.mse_loss(x[victim].flip(-1), x[victim]))
