"""Where the search for robust data starts: the paper's blend with noise, or noise without a mean."""

from torch import Tensor

STARTS = ("blend", "centred")


def start(kind: str, x: Tensor, noise: Tensor, alpha: float, low: float, high: float) -> Tensor:
    """Robust data before the first step; `noise` is uniform in 0..1 and of the shape of `x`.

    "blend" is (1 − α)·x + α·v and draws every image towards grey. "centred" is x + α·(v − its mean): it
    leaves 0..1, but over many samples its error has no mean, and training feels it far less.
    """
    spread = high - low
    if kind == "blend":
        return (1 - alpha) * x + alpha * (low + spread * noise)
    return x + alpha * spread * (noise - 0.5)
