"""The two starts against their formulas."""

import pytest
import torch

from refiner.defenses.refine.initialization import start

RANGES = [(0.0, 1.0), (-1.0, 3.0)]


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_blend_is_the_papers(low: float, high: float) -> None:
    share, noise = torch.rand(2, 5, 7, dtype=torch.float64).unbind()
    x, v = (low + (high - low) * t for t in (share, noise))
    torch.testing.assert_close(start("blend", x, noise, 0.3, low, high), 0.7 * x + 0.3 * v)
    torch.testing.assert_close(start("blend", x, noise, 0.0, low, high), x)
    torch.testing.assert_close(start("blend", x, noise, 1.0, low, high), v)


@pytest.mark.parametrize(("low", "high"), RANGES)
def test_centred_adds_noise_around_the_image(low: float, high: float) -> None:
    x, noise = torch.rand(2, 5, 7, dtype=torch.float64).unbind()
    added = start("centred", x, noise, 2.2, low, high) - x
    torch.testing.assert_close(added, 2.2 * (high - low) * (noise - 0.5))
    # Noise and its mirror image add up to nothing.
    mirrored = start("centred", x, 1 - noise, 2.2, low, high) - x
    torch.testing.assert_close(added, -mirrored)
