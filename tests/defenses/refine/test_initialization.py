"""The two initialisations against their formulas."""

import pytest
import torch

from refiner.defenses.refine.initialization import initial_robust_data

RANGES = [(0.0, 1.0), (-1.0, 3.0)]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_blend_is_the_papers_formula(low: float, high: float) -> None:
    share, noise = torch.rand(2, 5, 7, dtype=torch.float64).unbind()
    x, v = (low + (high - low) * t for t in (share, noise))
    torch.testing.assert_close(initial_robust_data("blend", x, noise, 0.3, low, high), 0.7 * x + 0.3 * v)
    torch.testing.assert_close(initial_robust_data("blend", x, noise, 0.0, low, high), x)
    torch.testing.assert_close(initial_robust_data("blend", x, noise, 1.0, low, high), v)


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_centred_adds_noise_of_zero_mean(low: float, high: float) -> None:
    x, noise = torch.rand(2, 5, 7, dtype=torch.float64).unbind()
    added = initial_robust_data("centred", x, noise, 2.2, low, high) - x
    torch.testing.assert_close(added, 2.2 * (high - low) * (noise - 0.5))
    # Noise and mirrored noise cancel.
    mirrored = initial_robust_data("centred", x, 1 - noise, 2.2, low, high) - x
    torch.testing.assert_close(added, -mirrored)
