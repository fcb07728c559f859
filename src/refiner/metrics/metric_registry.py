"""The metrics that compare reconstructions with originals by name, and all scores at once."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from refiner.evaluation import EvaluationNetwork
from refiner.metrics.image import mse, psnr, ssim
from refiner.metrics.image_checks import check_images, check_pair
from refiner.metrics.perceptual import lpips


@dataclass(frozen=True)
class Metric:
    """A function that compares reconstructions with their originals."""

    name: str
    label: str
    """The heading in a table, with the unit."""
    function: Callable[[Tensor, Tensor], Tensor]
    """Takes reconstructions and originals `[N, C, H, W]`, returns `[N]`."""
    higher_is_closer: bool
    """Whether a higher score means more similar images."""


METRICS = {
    metric.name: metric
    for metric in (
        Metric("mse", "MSE", mse, higher_is_closer=False),
        Metric("psnr", "PSNR, dB", psnr, higher_is_closer=True),
        Metric("ssim", "SSIM", ssim, higher_is_closer=True),
        Metric("lpips", "LPIPS", lpips, higher_is_closer=False),
    )
}


def noise_ratio(images: Tensor) -> Tensor:
    """Return the fraction of each image that is noise, as estimated by the bundled evaluation network.

    It scores the reconstruction alone: a clean image of something else scores 0.

    Args:
        images: `[N, C, H, W]` in 0..1, with 1 or 3 channels and 28 to 224 pixels per side.

    Returns:
        `[N]` in 0..1.

    >>> import torch
    >>> noise_ratio(torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))).item() > 0.9
    True
    """
    images = check_images("images", images)
    return EvaluationNetwork.bundled(images.device).score(images.float()).to(images.dtype)


def score_all(reconstructed: Tensor, original: Tensor) -> dict[str, Tensor]:
    """Return every score of each image, `[N]` each: mse, psnr, ssim, lpips and the reconstruction's noise.

    Args:
        reconstructed: `[N, C, H, W]` in 0..1.
        original: `[N, C, H, W]` in 0..1; the n-th reconstruction belongs to the n-th original.

    Returns:
        The scores `[N]` by name.

    >>> import torch
    >>> image = torch.full((1, 3, 32, 32), 0.5)
    >>> {name: round(score.item(), 3) for name, score in score_all(image, image).items()}
    {'mse': 0.0, 'psnr': 100.0, 'ssim': 1.0, 'lpips': 0.0, 'noise': 0.0...}
    """
    reconstructed, original = check_pair(reconstructed, original)
    scores = {name: metric.function(reconstructed, original) for name, metric in METRICS.items()}
    return scores | {"noise": noise_ratio(reconstructed)}
