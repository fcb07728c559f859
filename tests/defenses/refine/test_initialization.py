"""The three initialisations against their formulas."""

import pytest
import torch
from torch import Tensor

from refiner.core.noise import NoiseSource, gaussian, uniform
from refiner.defenses.refine.initialization import NOISE_STEPS, initial_robust_data
from refiner.defenses.refine.refiner_settings import RefinerSettings
from refiner.shaped_noise import NaturalNoise

RANGES = [(0.0, 1.0), (-1.0, 3.0)]
KEY, IDS, SHAPE = NoiseSource(seed=0).key, torch.arange(6).view(2, 3), (3, 32, 32)


def start(settings: RefinerSettings, x: Tensor) -> Tensor:
    return initial_robust_data(settings, x, IDS, KEY, NaturalNoise.bundled())


@pytest.mark.parametrize("limits", RANGES)
def test_blend_is_the_papers_formula(limits: tuple[float, float]) -> None:
    low, high = limits
    x, v = (low + (high - low) * share for share in (torch.rand(2, 3, *SHAPE), uniform(KEY, IDS, SHAPE)))
    for alpha in (0.0, 0.3, 1.0):
        blend = RefinerSettings(start="blend", alpha=alpha, input_range=limits)
        torch.testing.assert_close(start(blend, x), (1 - alpha) * x + alpha * v)


@pytest.mark.parametrize("limits", RANGES)
def test_centred_adds_uniform_noise_of_zero_mean(limits: tuple[float, float]) -> None:
    low, high = limits
    x = torch.rand(2, 3, *SHAPE)
    added = start(RefinerSettings(start="centred", alpha=2.2, input_range=limits), x) - x
    torch.testing.assert_close(
        added, 2.2 * (high - low) * (uniform(KEY, IDS, SHAPE) - 0.5), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("limits", RANGES)
def test_natural_adds_shaped_noise(limits: tuple[float, float]) -> None:
    low, high = limits
    x = torch.rand(2, 3, *SHAPE)
    shaped = start(RefinerSettings(alpha=2.0, input_range=limits), x) - x
    expected = 2.0 * (high - low) * NaturalNoise.bundled()(gaussian(KEY, IDS, SHAPE))
    rounding = (high - low) / NOISE_STEPS / 2
    torch.testing.assert_close(shaped, expected, atol=rounding + 1e-5, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("limits", RANGES)
def test_shaped_noise_and_image_are_rounded_together(limits: tuple[float, float], dtype: torch.dtype) -> None:
    x = limits[0] + (limits[1] - limits[0]) * torch.rand(2, 3, *SHAPE, dtype=dtype)
    steps = start(RefinerSettings(input_range=limits), x) * (NOISE_STEPS / (limits[1] - limits[0]))
    assert torch.equal(steps, steps.round())
    unchanged = start(RefinerSettings(alpha=0, input_range=limits), x)
    assert torch.equal(unchanged, x)


def test_the_last_bits_of_a_noisy_image_do_not_tell_the_image() -> None:
    levels, noise = torch.randint(256, (2, 3, *SHAPE)), NaturalNoise.bundled()(gaussian(KEY, IDS, SHAPE))
    x, alpha = levels.double() / 255, 3.0

    def correctly_read(noisy: Tensor) -> float:
        """Draws are float32 numbers: the share of pixels with one possible level, which is the image's."""
        candidates = (noisy[..., None] - torch.arange(256.0, dtype=torch.float64) / 255) / alpha
        misses = (candidates - candidates.float().double()).abs()
        return float((misses.argmin(-1) == levels).double().mean())

    assert correctly_read(x + alpha * noise.double()) > 0.99
    assert correctly_read(start(RefinerSettings(), x)) < 0.05


def test_the_noise_of_a_sample_depends_on_its_id_and_the_key_only() -> None:
    x, settings = torch.rand(2, 3, *SHAPE), RefinerSettings()
    noise, other = (start(settings, image) - image for image in (x, torch.rand_like(x)))
    torch.testing.assert_close(noise, other, atol=1 / NOISE_STEPS + 1e-5, rtol=0)
    again = initial_robust_data(settings, x, IDS, NoiseSource(seed=1).key, NaturalNoise.bundled()) - x
    flat = torch.cat([noise.flatten(0, 1), again.flatten(0, 1)]).flatten(1)
    whitened = NaturalNoise.bundled().whiten(flat.view(-1, *SHAPE)).flatten(1)
    assert (torch.corrcoef(whitened) - torch.eye(12)).abs().max() < 0.1
