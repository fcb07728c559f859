"""Images mixed with uniform noise at known ratios: what D learns from and is scored on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.evaluation.network import EvaluationNetwork

RATIOS = tuple(i / 10 for i in range(11))


def mix(images: Tensor, ratio: float | Tensor, generator: torch.Generator) -> Tensor:
    """(1 − r)·image + r·noise, the noise uniform in 0..1.

    >>> mix(torch.zeros(1, 3, 4, 4), 0.0, torch.Generator()).max().item()
    0.0
    """
    noise = torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)
    return (1 - ratio) * images + ratio * noise


@dataclass(frozen=True)
class RatioScores:
    """How well the network reads known ratios 0.1 … 0.9 (the paper's Figure 4).

    >>> from refiner.data import load_sample
    >>> found = score_ratios(EvaluationNetwork.bundled(), load_sample().images[:4])
    >>> [round(share, 1) for share in found.mean_prediction] == list(found.ratios)
    True
    """

    ratios: tuple[float, ...]
    mean_prediction: tuple[float, ...]
    """For each ratio, over all images."""
    mean_absolute_error: float
    """Over all images and ratios."""
    rising_share: float
    """The share of images whose prediction rises with every step of the ratio."""


def score_ratios(network: EvaluationNetwork, images: Tensor, seed: int = 0) -> RatioScores:
    """Mix every image at 0.1 … 0.9 and compare prediction and truth.

    >>> from refiner.data import load_sample
    >>> found = score_ratios(EvaluationNetwork.bundled(), load_sample().images[:4])
    >>> found.mean_absolute_error < 0.03, found.rising_share
    (True, 1.0)
    """
    device = next(network.parameters()).device
    generator = torch.Generator(device).manual_seed(seed)
    ratios = RATIOS[1:-1]
    moved = images.to(device)
    predictions = torch.stack([network.score(mix(moved, r, generator)) for r in ratios])
    truth = torch.tensor(ratios, device=device)[:, None]
    return RatioScores(
        ratios=ratios,
        mean_prediction=tuple(predictions.mean(1).tolist()),
        mean_absolute_error=(predictions - truth).abs().mean().item(),
        rising_share=(predictions.diff(dim=0) > 0).all(0).float().mean().item(),
    )
