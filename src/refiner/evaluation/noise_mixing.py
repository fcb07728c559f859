"""Images mixed with uniform noise at known ratios, to train and to test the evaluation network."""

from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.evaluation.network import EvaluationNetwork

RATIOS = tuple(i / 10 for i in range(11))


def mix_with_noise(images: Tensor, ratio: float | Tensor, generator: torch.Generator) -> Tensor:
    """Return (1 − ratio)·images + ratio·noise.

    Args:
        images: Images of any shape, in 0..1.
        ratio: The noise ratio in 0..1, or a tensor of them that broadcasts.
        generator: Draws the noise, uniform in 0..1.

    Returns:
        Images of the same shape.

    >>> mix_with_noise(torch.zeros(1, 3, 4, 4), 0.0, torch.Generator()).max().item()
    0.0
    """
    noise = torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)
    return (1 - ratio) * images + ratio * noise


@dataclass(frozen=True)
class NoiseRatioScores:
    """How well the network predicts known ratios 0.1 … 0.9 (the paper's Figure 4)."""

    ratios: tuple[float, ...]
    mean_prediction: tuple[float, ...]
    """For each ratio, over all images."""
    mean_absolute_error: float
    """Over all images and ratios."""
    rising_share: float
    """The fraction of images whose prediction rises with every step of the ratio."""


def score_noise_ratios(network: EvaluationNetwork, images: Tensor, seed: int = 0) -> NoiseRatioScores:
    """Mix every image with noise at ratios 0.1 … 0.9 and compare predictions with the true ratios.

    Args:
        network: The network to test.
        images: `[N, C, H, W]` in 0..1.
        seed: Seed of the noise.

    Returns:
        The mean prediction at each ratio, and errors over all images.

    >>> from refiner.data import load_sample
    >>> scores = score_noise_ratios(EvaluationNetwork.bundled(), load_sample().images[:4])
    >>> scores.mean_absolute_error < 0.03, scores.rising_share
    (True, 1.0)
    >>> [round(ratio, 1) for ratio in scores.mean_prediction] == list(scores.ratios)
    True
    """
    device = next(network.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    ratios = RATIOS[1:-1]
    images = images.to(device)
    predictions = torch.stack([network.score(mix_with_noise(images, r, generator)) for r in ratios])
    true_ratios = torch.tensor(ratios, device=device)[:, None]
    return NoiseRatioScores(
        ratios=ratios,
        mean_prediction=tuple(predictions.mean(1).tolist()),
        mean_absolute_error=(predictions - true_ratios).abs().mean().item(),
        rising_share=(predictions.diff(dim=0) > 0).all(0).float().mean().item(),
    )
