"""The metrics by name: how each is computed and which way is nearer to the original."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from refiner.evaluation import EvaluationNetwork
from refiner.metrics.image import mse, psnr, ssim
from refiner.metrics.pairs import check_images, check_pair
from refiner.metrics.perceptual import lpips


@dataclass(frozen=True)
class Measure:
    """A distance or a likeness of reconstructions to their originals, `[N]` from two stacks of images."""

    name: str
    label: str
    """As a table shows it, with its unit."""
    compare: Callable[[Tensor, Tensor], Tensor]
    higher_is_nearer: bool


MEASURES = {
    measure.name: measure
    for measure in (
        Measure("mse", "MSE", mse, higher_is_nearer=False),
        Measure("psnr", "PSNR, dB", psnr, higher_is_nearer=True),
        Measure("ssim", "SSIM", ssim, higher_is_nearer=True),
        Measure("lpips", "LPIPS", lpips, higher_is_nearer=False),
    )
}


def noise_ratio(images: Tensor) -> Tensor:
    """Which share of each image the bundled evaluation network takes for noise, `[N]` in 0..1.

    It looks at the reconstruction alone: a clean image of something else has 0.

    >>> import torch
    >>> noise_ratio(torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))).item() > 0.9
    True
    """
    images = check_images("images", images)
    return EvaluationNetwork.bundled(images.device).score(images.float()).to(images.dtype)


def measure_all(reconstructed: Tensor, original: Tensor) -> dict[str, Tensor]:
    """Every score of each image, `[N]` each: mse, psnr, ssim, lpips and the reconstruction's noise.

    >>> import torch
    >>> image = torch.full((1, 3, 32, 32), 0.5)
    >>> {name: round(score.item(), 3) for name, score in measure_all(image, image).items()}
    {'mse': 0.0, 'psnr': 100.0, 'ssim': 1.0, 'lpips': 0.0, 'noise': 0.0...}
    """
    reconstructed, original = check_pair(reconstructed, original)
    scores = {name: measure.compare(reconstructed, original) for name, measure in MEASURES.items()}
    return scores | {"noise": noise_ratio(reconstructed)}
