"""Robust data before the first step: the paper's blend with noise, noise with zero mean, or shaped noise."""

import torch
from torch import Tensor

from refiner.core.noise import gaussian, uniform
from refiner.defenses.refine.refiner_settings import RefinerSettings
from refiner.shaped_noise import NaturalNoise

NOISE_STEPS = 2**12
"""How many values the input range has under shaped noise: sums are rounded to these."""


def initial_robust_data(
    settings: RefinerSettings, x: Tensor, ids: Tensor, key: Tensor, statistics: NaturalNoise | None
) -> Tensor:
    """Robust data before the first step for `x [V, B, *input]`; a sample's noise depends on its id and key.

    "blend" is (1 − α)·x + α·v with uniform v and moves every image towards grey. "centred" is x + α·(v − its
    mean): it leaves the input range, but over many samples its error has zero mean and affects training far
    less. "natural" is x + α·n with Gaussian n: one part has the covariance of natural images, so that no
    filter that knows images removes it, the other is white.

    Shaped noise is rounded together with the image. Of an unrounded sum the last bits tell x: draws are
    float32 numbers, and for hardly any other image x' is z − x' a multiple of one.
    """
    low, high = settings.limits()
    width, shape, alpha = high - low, tuple(x.shape[2:]), settings.alpha
    if settings.start == "natural":
        assert statistics is not None
        if alpha == 0:
            return x
        # Rounded before a cast to half precision, too: its spacing is wide where values are large only.
        wide, step = torch.promote_types(x.dtype, torch.float32), width / NOISE_STEPS
        noise: Tensor = statistics(gaussian(key, ids, shape)).to(wide)
        return ((x.to(wide) + alpha * width * noise).div_(step).round_().mul_(step)).to(x.dtype)
    draws = uniform(key, ids, shape, x.dtype)
    if settings.start == "blend":
        return (1 - alpha) * x + alpha * (low + width * draws)
    return x + alpha * width * (draws - 0.5)
