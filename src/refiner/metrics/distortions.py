"""Distortions that keep, or lose, what an image shows, and what each metric makes of them.

After the paper's Figure 3 (shift, scale, noise) and its appendix on SSIM and LPIPS (rotation, flip, colour
jitter).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner import checks
from refiner.evaluation import EvaluationNetwork
from refiner.metrics.measures import MEASURES, measure_all
from refiner.metrics.pairs import check_images

COLUMNS = ("distortion", *(measure.label for measure in MEASURES.values()), "noise ratio")
_LUMA = (0.299, 0.587, 0.114)


def shift(images: Tensor, pixels: int = 1) -> Tensor:
    """Move everything to the top left; the last row and column are repeated.

    >>> shift(torch.arange(9.0).view(1, 1, 3, 3) / 9).mul(9).round().int().tolist()
    [[[[4, 5, 5], [7, 8, 8], [7, 8, 8]]]]
    """
    images = check_images("images", images)
    pixels = checks.integer("pixels", pixels, 0, min(images.shape[2:]) - 1)
    return F.pad(images[..., pixels:, pixels:], (0, pixels, 0, pixels), mode="replicate")


def scale(images: Tensor, factor: float = 0.4) -> Tensor:
    """Multiply every pixel, as we read the paper's "scaling a pixel"; 0.4 comes near its MSE of 0.106.

    >>> scale(torch.full((1, 1, 1, 1), 0.5)).item()
    0.2...
    """
    factor = checks.number("factor", factor, 0)
    return (check_images("images", images) * factor).clamp(0, 1)


def noise(images: Tensor, deviation: float = 0.065, seed: int = 0) -> Tensor:
    """Add Gaussian noise and clip; the default has the paper's MSE of 0.004 on the bundled sample.

    >>> noise(torch.full((1, 3, 64, 64), 0.5), 0.1).std().mul(10).round().item()
    1.0
    """
    images = check_images("images", images)
    deviation = checks.number("deviation", deviation, 0)
    drawn = torch.randn(images.shape, generator=_generator(images, seed), device=images.device)
    return (images + deviation * drawn).clamp(0, 1).to(images.dtype)


def rotate(images: Tensor, degrees: float = 90.0) -> Tensor:
    """Turn around the centre, bilinearly, anticlockwise; what comes in over the edges is mirrored.

    >>> rotate(torch.eye(8)[None, None]).round().equal(torch.eye(8).flip(0)[None, None])
    True
    """
    images = check_images("images", images)
    angle = math.radians(checks.number("degrees", degrees, -360, 360))
    height, width = images.shape[2:]
    cosine, sine = math.cos(angle), math.sin(angle)
    # The grid's axes run from −1 to 1 whatever the sides; their ratio keeps the turn rigid.
    turn = [[cosine, -sine * height / width, 0.0], [sine * width / height, cosine, 0.0]]
    theta = images.new_tensor(turn).expand(len(images), 2, 3)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, padding_mode="reflection", align_corners=False).clamp(0, 1)


def flip(images: Tensor) -> Tensor:
    """Mirror left and right.

    >>> flip(torch.tensor([[[[0.0, 1.0]]]])).tolist()
    [[[[1.0, 0.0]]]]
    """
    return check_images("images", images).flip(-1)


def colour_jitter(images: Tensor, strength: float = 0.5, seed: int = 0) -> Tensor:
    """Change brightness, contrast, saturation by up to 1 ± `strength` and hue by up to `strength` half-turns.

    Each image has its own draws. A grey image has neither saturation nor hue.

    >>> colour_jitter(torch.rand(2, 3, 8, 8), strength=0.0).shape
    torch.Size([2, 3, 8, 8])
    """
    images = check_images("images", images)
    strength = checks.number("strength", strength, 0, 1)
    generator = _generator(images, seed)
    drawn = torch.rand(4, len(images), 1, 1, 1, generator=generator, device=images.device)
    swing = (2 * drawn.to(images.dtype) - 1) * strength
    bright = (images * (1 + swing[0])).clamp(0, 1)
    if images.shape[1] != 3:
        return _around(bright, bright.mean((1, 2, 3), keepdim=True), 1 + swing[1])
    contrasted = _around(bright, _grey(bright).mean((2, 3), keepdim=True), 1 + swing[1])
    saturated = _around(contrasted, _grey(contrasted), 1 + swing[2])
    turned = torch.einsum("nij,njhw->nihw", _hue_turn(swing[3].flatten() * math.pi), saturated)
    return turned.clamp(0, 1)


def mean_colour(images: Tensor) -> Tensor:
    """Each image as its own mean colour: nothing that it shows is left.

    >>> mean_colour(torch.tensor([[[[0.0, 1.0]]]])).tolist()
    [[[[0.5, 0.5]]]]
    """
    images = check_images("images", images)
    return images.mean((2, 3), keepdim=True).expand_as(images)


def uniform_noise(images: Tensor, seed: int = 0) -> Tensor:
    """Uniform noise of the images' shape and nothing of the images.

    >>> uniform_noise(torch.zeros(1, 3, 64, 64)).mean().mul(10).round().item()
    5.0
    """
    images = check_images("images", images)
    generator = _generator(images, seed)
    return torch.rand(images.shape, generator=generator, device=images.device, dtype=images.dtype)


@dataclass(frozen=True)
class Row:
    """One distortion's scores, in means over all images."""

    name: str
    mse: float
    psnr: float
    ssim: float
    lpips: float
    noise: float

    def cells(self) -> tuple[str, ...]:
        """The row of a table as text, in the order of `COLUMNS`."""
        rest = (f"{value:.3f}" for value in (self.ssim, self.lpips, self.noise))
        return (self.name, f"{self.mse:.4f}", f"{self.psnr:.1f}", *rest)


def table(images: Tensor, seed: int = 0) -> list[Row]:
    """What every metric says of every distortion of `images [N, C, H, W]` against the originals.

    Beside the paper's six: the original itself, its own mean colour, uniform noise, and, of two or more
    images, the next one, clean but wrong.

    >>> from refiner.data import load_sample
    >>> rows = table(load_sample().images[:4])
    >>> rows[0].cells(), rows[1].name
    (('none', '0.0000', '100.0', '1.000', '0.000', '0.0...'), 'shift')
    """
    images = check_images("images", images)
    EvaluationNetwork.check_many(images)
    made: dict[str, Callable[[], Tensor]] = {
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
        made["another image"] = lambda: images.roll(1, 0)
    return [
        Row(name, **{score: float(each.mean()) for score, each in measure_all(make(), images).items()})
        for name, make in made.items()
    ]


def _generator(images: Tensor, seed: int) -> torch.Generator:
    return torch.Generator(images.device).manual_seed(checks.integer("seed", seed, 0, 2**31 - 1))


def _grey(images: Tensor) -> Tensor:
    return (images * images.new_tensor(_LUMA)[:, None, None]).sum(1, keepdim=True)


def _around(images: Tensor, centre: Tensor, factor: Tensor) -> Tensor:
    """Distances to `centre` times `factor`."""
    return (centre + (images - centre) * factor).clamp(0, 1)


def _hue_turn(angles: Tensor) -> Tensor:
    """`[N, 3, 3]`: turns of the colours around the grey axis."""
    third, root = 1 / 3, math.sqrt(1 / 3)
    cosine, sine = angles.cos(), angles.sin()
    same = cosine + third * (1 - cosine)
    left, right = third * (1 - cosine) - root * sine, third * (1 - cosine) + root * sine
    return torch.stack([same, left, right, right, same, left, left, right, same], -1).view(-1, 3, 3)
