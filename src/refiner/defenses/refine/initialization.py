"""Robust data before the first step: the paper's blend with noise, or noise with zero mean."""

from torch import Tensor

STARTS = ("blend", "centred")


def initial_robust_data(kind: str, x: Tensor, noise: Tensor, alpha: float, low: float, high: float) -> Tensor:
    """Robust data before the first step; `noise` is uniform in 0..1 and has the shape of `x`.

    "blend" is (1 − α)·x + α·v and moves every image towards grey. "centred" is x + α·(v − its mean): it
    leaves the input range, but over many samples its error has zero mean and affects training far less.
    """
    width = high - low
    if kind == "blend":
        return (1 - alpha) * x + alpha * (low + width * noise)
    return x + alpha * width * (noise - 0.5)
