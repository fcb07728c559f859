"""Distortions that preserve or destroy the content of an image, and the score of each by every metric.

Shift, scale and noise are from the paper's Figure 3; rotation, flip and colour jitter from its appendix on
SSIM and LPIPS.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner import checks
from refiner.evaluation import EvaluationNetwork
from refiner.metrics.image_checks import check_images
from refiner.metrics.metric_registry import METRICS, score_all

COLUMNS = ("distortion", *(metric.label for metric in METRICS.values()), "noise ratio")
_LUMA = (0.299, 0.587, 0.114)


def shift(images: Tensor, pixels: int = 1) -> Tensor:
    """Return images `[N, C, H, W]` shifted to the top left; the last row and column are repeated.

    >>> shift(torch.arange(9.0).view(1, 1, 3, 3) / 9).mul(9).round().int().tolist()
    [[[[4, 5, 5], [7, 8, 8], [7, 8, 8]]]]
    """
    images = check_images("images", images)
    pixels = checks.integer("pixels", pixels, 0, min(images.shape[2:]) - 1)
    return F.pad(images[..., pixels:, pixels:], (0, pixels, 0, pixels), mode="replicate")


def scale(images: Tensor, factor: float = 0.4) -> Tensor:
    """Return images with every pixel multiplied by `factor`.

    This is our reading of the paper's "scaling a pixel"; 0.4 comes near its MSE of 0.106.

    >>> scale(torch.full((1, 1, 1, 1), 0.5)).item()
    0.2...
    """
    factor = checks.number("factor", factor, 0)
    return (check_images("images", images) * factor).clamp(0, 1)


def noise(images: Tensor, deviation: float = 0.065, seed: int = 0) -> Tensor:
    """Return images with Gaussian noise, clamped to 0..1.

    The default deviation gives the paper's MSE of 0.004 on the bundled sample.

    >>> noise(torch.full((1, 3, 64, 64), 0.5), 0.1).std().mul(10).round().item()
    1.0
    """
    images = check_images("images", images)
    deviation = checks.number("deviation", deviation, 0)
    draws = torch.randn(images.shape, generator=_generator(images, seed), device=images.device)
    return (images + deviation * draws).clamp(0, 1).to(images.dtype)


def rotate(images: Tensor, degrees: float = 90.0) -> Tensor:
    """Return images rotated anticlockwise around the centre, bilinearly, with mirrored borders.

    >>> rotate(torch.eye(8)[None, None]).round().equal(torch.eye(8).flip(0)[None, None])
    True
    """
    images = check_images("images", images)
    angle = math.radians(checks.number("degrees", degrees, -360, 360))
    height, width = images.shape[2:]
    cosine, sine = math.cos(angle), math.sin(angle)
    # The grid runs from −1 to 1 along both sides; the aspect ratio keeps the rotation rigid.
    rotation = [[cosine, -sine * height / width, 0.0], [sine * width / height, cosine, 0.0]]
    theta = images.new_tensor(rotation).expand(len(images), 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False).clamp(0, 1)


def flip(images: Tensor) -> Tensor:
    """Return images mirrored left to right.

    >>> flip(torch.tensor([[[[0.0, 1.0]]]])).tolist()
    [[[[1.0, 0.0]]]]
    """
    return check_images("images", images).flip(-1)


def colour_jitter(images: Tensor, strength: float = 0.5, seed: int = 0) -> Tensor:
    """Return images with random changes of brightness, contrast, saturation and hue, drawn for each image.

    The first three change by a factor of up to 1 ± `strength`, the hue by up to `strength` half-turns. A grey
    image has neither saturation nor hue.

    >>> colour_jitter(torch.rand(2, 3, 8, 8), strength=0.0).shape
    torch.Size([2, 3, 8, 8])
    """
    images = check_images("images", images)
    strength = checks.number("strength", strength, 0, 1)
    generator = _generator(images, seed)
    draws = torch.rand(4, len(images), 1, 1, 1, generator=generator, device=images.device)
    change = (2 * draws.to(images.dtype) - 1) * strength
    bright = (images * (1 + change[0])).clamp(0, 1)
    if images.shape[1] != 3:
        return _scale_around(bright, bright.mean((1, 2, 3), keepdim=True), 1 + change[1])
    contrasted = _scale_around(bright, _grey(bright).mean((2, 3), keepdim=True), 1 + change[1])
    saturated = _scale_around(contrasted, _grey(contrasted), 1 + change[2])
    rotation = _hue_rotation(change[3].flatten() * math.pi)
    return torch.einsum("nij,njhw->nihw", rotation, saturated).clamp(0, 1)


def mean_colour(images: Tensor) -> Tensor:
    """Return each image's own mean colour: nothing of its content remains.

    >>> mean_colour(torch.tensor([[[[0.0, 1.0]]]])).tolist()
    [[[[0.5, 0.5]]]]
    """
    images = check_images("images", images)
    return images.mean((2, 3), keepdim=True).expand_as(images)


def uniform_noise(images: Tensor, seed: int = 0) -> Tensor:
    """Return uniform noise of the images' shape.

    >>> uniform_noise(torch.zeros(1, 3, 64, 64)).mean().mul(10).round().item()
    5.0
    """
    images = check_images("images", images)
    generator = _generator(images, seed)
    return torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)


@dataclass(frozen=True)
class DistortionScores:
    """The scores of one distortion, averaged over all images."""

    name: str
    mse: float
    psnr: float
    ssim: float
    lpips: float
    noise: float

    def cells(self) -> tuple[str, ...]:
        """Return the row of a table as text, in the order of `COLUMNS`."""
        rest = (f"{value:.3f}" for value in (self.ssim, self.lpips, self.noise))
        return (self.name, f"{self.mse:.4f}", f"{self.psnr:.1f}", *rest)


def distortion_table(images: Tensor, seed: int = 0) -> list[DistortionScores]:
    """Return the scores of every distortion of `images` against the originals.

    Besides the paper's six there are the original itself, its own mean colour, uniform noise and, for two or
    more images, the next image.

    Args:
        images: `[N, C, H, W]` in 0..1, of a size that all metrics take.
        seed: Seed of the random distortions.

    Returns:
        One row for each distortion.

    >>> from refiner.data import load_sample
    >>> rows = distortion_table(load_sample().images[:4])
    >>> rows[0].cells(), rows[1].name
    (('none', '0.0000', '100.0', '1.000', '0.000', '0.0...'), 'shift')
    """
    images = check_images("images", images)
    EvaluationNetwork.check_images(images)
    distortions: dict[str, Callable[[], Tensor]] = {
        "none": lambda: images,
        "shift": lambda: shift(images),
        "scale": lambda: scale(images),
        "noise": lambda: noise(images, seed=seed),
        "rotation": lambda: rotate(images),
        "flip": lambda: flip(images),
        "colour jitter": lambda: colour_jitter(images, seed=seed),
        "own mean colour": lambda: mean_colour(images),
        "uniform noise": lambda: uniform_noise(images, seed),
    }
    if len(images) > 1:
        distortions["another image"] = lambda: images.roll(1, 0)
    rows = []
    for name, distort in distortions.items():
        scores = {metric: float(each.mean()) for metric, each in score_all(distort(), images).items()}
        rows.append(DistortionScores(name, **scores))
    return rows


def _generator(images: Tensor, seed: int) -> torch.Generator:
    return torch.Generator(images.device).manual_seed(checks.integer("seed", seed, 0, 2**31 - 1))


def _grey(images: Tensor) -> Tensor:
    return (images * images.new_tensor(_LUMA)[:, None, None]).sum(1, keepdim=True)


def _scale_around(images: Tensor, centre: Tensor, factor: Tensor) -> Tensor:
    """Images with their difference from `centre` multiplied by `factor`."""
    return (centre + (images - centre) * factor).clamp(0, 1)


def _hue_rotation(angles: Tensor) -> Tensor:
    """Rotations `[N, 3, 3]` of colours around the grey axis."""
    third, root = 1 / 3, math.sqrt(1 / 3)
    cosine, sine = angles.cos(), angles.sin()
    diagonal = cosine + third * (1 - cosine)
    upper, lower = third * (1 - cosine) - root * sine, third * (1 - cosine) + root * sine
    rows = [diagonal, upper, lower, lower, diagonal, upper, upper, lower, diagonal]
    return torch.stack(rows, -1).view(-1, 3, 3)
