"""Robust data before the first step: the paper's blend with noise, noise with zero mean, or shaped noise."""

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from refiner.core.noise import gaussian, uniform
from refiner.defenses.refine.refiner_settings import RefinerSettings
from refiner.shaped_noise import NaturalNoise


def initial_robust_data(
    settings: RefinerSettings, x: Tensor, ids: Tensor, key: Tensor, statistics: NaturalNoise | None
) -> Tensor:
    """Robust data before the first step for `x [V, B, *input]`; a sample's noise depends on its id and key.

    "blend" is (1 − α)·x + α·v with uniform v and moves every image towards grey. "centred" is x + α·(v − its
    mean): it leaves the input range, but over many samples its error has zero mean and affects training far
    less. "natural" is x + α·n, n Gaussian with the covariance of natural images, which no filter that knows
    images can remove, plus that of a white part.
    """
    low, high = settings.limits()
    width, shape, alpha = high - low, tuple(x.shape[2:]), settings.alpha
    if settings.start == "natural":
        assert statistics is not None
        noise: Tensor = statistics(gaussian(key, ids, shape)).to(x.dtype)
        return x + alpha * width * noise
    draws = uniform(key, ids, shape, x.dtype)
    if settings.start == "blend":
        return (1 - alpha) * x + alpha * (low + width * draws)
    return x + alpha * width * (draws - 0.5)


@lru_cache(maxsize=8)
def noise_statistics(
    file: str | None, shape: tuple[int, ...], device: torch.device, white: float = 0.0
) -> NaturalNoise:
    """The statistics in `file`, or the bundled ones, for inputs of a shape, with a white part; made once."""
    statistics = NaturalNoise.bundled(device) if file is None else NaturalNoise.load(Path(file)).to(device)
    return statistics.for_shape(shape).with_white(white)
