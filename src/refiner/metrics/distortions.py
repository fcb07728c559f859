"""Distortions that keep, or lose, what a picture shows, and what each metric makes of them.

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
from refiner.metrics.pairs import check_pictures

COLUMNS = ("distortion", *(measure.label for measure in MEASURES.values()), "noise ratio")
_LUMA = (0.299, 0.587, 0.114)


def shift(pictures: Tensor, pixels: int = 1) -> Tensor:
    """Move everything to the top left; the last row and column are repeated.

    >>> shift(torch.arange(9.0).view(1, 1, 3, 3) / 9).mul(9).round().int().tolist()
    [[[[4, 5, 5], [7, 8, 8], [7, 8, 8]]]]
    """
    pictures = check_pictures("pictures", pictures)
    pixels = checks.integer("pixels", pixels, 0, min(pictures.shape[2:]) - 1)
    return F.pad(pictures[..., pixels:, pixels:], (0, pixels, 0, pixels), mode="replicate")


def scale(pictures: Tensor, factor: float = 0.4) -> Tensor:
    """Multiply every pixel, as we read the paper's "scaling a pixel"; 0.4 comes near its MSE of 0.106.

    >>> scale(torch.full((1, 1, 1, 1), 0.5)).item()
    0.2...
    """
    factor = checks.number("factor", factor, 0)
    return (check_pictures("pictures", pictures) * factor).clamp(0, 1)


def noise(pictures: Tensor, deviation: float = 0.065, seed: int = 0) -> Tensor:
    """Add Gaussian noise and clip; the default has the paper's MSE of 0.004 on the bundled sample.

    >>> noise(torch.full((1, 3, 64, 64), 0.5), 0.1).std().mul(10).round().item()
    1.0
    """
    pictures = check_pictures("pictures", pictures)
    deviation = checks.number("deviation", deviation, 0)
    drawn = torch.randn(pictures.shape, generator=_generator(pictures, seed), device=pictures.device)
    return (pictures + deviation * drawn).clamp(0, 1).to(pictures.dtype)


def rotate(pictures: Tensor, degrees: float = 90.0) -> Tensor:
    """Turn around the centre, bilinearly, anticlockwise; what comes in over the edges is mirrored.

    >>> rotate(torch.eye(8)[None, None]).round().equal(torch.eye(8).flip(0)[None, None])
    True
    """
    pictures = check_pictures("pictures", pictures)
    angle = math.radians(checks.number("degrees", degrees, -360, 360))
    height, width = pictures.shape[2:]
    cosine, sine = math.cos(angle), math.sin(angle)
    # The grid's axes run from −1 to 1 whatever the sides; their ratio keeps the turn rigid.
    turn = [[cosine, -sine * height / width, 0.0], [sine * width / height, cosine, 0.0]]
    theta = pictures.new_tensor(turn).expand(len(pictures), 2, 3)
    grid = F.affine_grid(theta, list(pictures.shape), align_corners=False)
    return F.grid_sample(pictures, grid, padding_mode="reflection", align_corners=False).clamp(0, 1)


def flip(pictures: Tensor) -> Tensor:
    """Mirror left and right.

    >>> flip(torch.tensor([[[[0.0, 1.0]]]])).tolist()
    [[[[1.0, 0.0]]]]
    """
    return check_pictures("pictures", pictures).flip(-1)


def colour_jitter(pictures: Tensor, strength: float = 0.5, seed: int = 0) -> Tensor:
    """Change brightness, contrast, saturation by up to 1 ± `strength` and hue by up to `strength` half-turns.

    Each picture has its own draws. A grey picture has neither saturation nor hue.

    >>> colour_jitter(torch.rand(2, 3, 8, 8), strength=0.0).shape
    torch.Size([2, 3, 8, 8])
    """
    pictures = check_pictures("pictures", pictures)
    strength = checks.number("strength", strength, 0, 1)
    generator = _generator(pictures, seed)
    drawn = torch.rand(4, len(pictures), 1, 1, 1, generator=generator, device=pictures.device)
    swing = (2 * drawn.to(pictures.dtype) - 1) * strength
    bright = (pictures * (1 + swing[0])).clamp(0, 1)
    if pictures.shape[1] != 3:
        return _around(bright, bright.mean((1, 2, 3), keepdim=True), 1 + swing[1])
    contrasted = _around(bright, _grey(bright).mean((2, 3), keepdim=True), 1 + swing[1])
    saturated = _around(contrasted, _grey(contrasted), 1 + swing[2])
    turned = torch.einsum("nij,njhw->nihw", _hue_turn(swing[3].flatten() * math.pi), saturated)
    return turned.clamp(0, 1)


def mean_colour(pictures: Tensor) -> Tensor:
    """Each picture as its own mean colour: nothing that it shows is left.

    >>> mean_colour(torch.tensor([[[[0.0, 1.0]]]])).tolist()
    [[[[0.5, 0.5]]]]
    """
    pictures = check_pictures("pictures", pictures)
    return pictures.mean((2, 3), keepdim=True).expand_as(pictures)


def uniform_noise(pictures: Tensor, seed: int = 0) -> Tensor:
    """Uniform noise of the pictures' shape and nothing of the pictures.

    >>> uniform_noise(torch.zeros(1, 3, 64, 64)).mean().mul(10).round().item()
    5.0
    """
    pictures = check_pictures("pictures", pictures)
    generator = _generator(pictures, seed)
    return torch.rand(pictures.shape, generator=generator, device=pictures.device, dtype=pictures.dtype)


@dataclass(frozen=True)
class Row:
    """One distortion's scores, in means over all pictures."""

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


def table(pictures: Tensor, seed: int = 0) -> list[Row]:
    """What every metric says of every distortion of `pictures [N, C, H, W]` against the originals.

    Beside the paper's six: the original itself, its own mean colour, uniform noise, and, of two or more
    pictures, the next one, clean but wrong.

    >>> from refiner.data import load_sample
    >>> rows = table(load_sample().images[:4])
    >>> rows[0].cells(), rows[1].name
    (('none', '0.0000', '100.0', '1.000', '0.000', '0.0...'), 'shift')
    """
    pictures = check_pictures("pictures", pictures)
    EvaluationNetwork.check_many(pictures)
    made: dict[str, Callable[[], Tensor]] = {
        "none": lambda: pictures,
        "shift": lambda: shift(pictures),
        "scale": lambda: scale(pictures),
        "noise": lambda: noise(pictures, seed=seed),
        "rotation": lambda: rotate(pictures),
        "flip": lambda: flip(pictures),
        "colour jitter": lambda: colour_jitter(pictures, seed=seed),
        "own mean colour": lambda: mean_colour(pictures),
        "uniform noise": lambda: uniform_noise(pictures, seed),
    }
    if len(pictures) > 1:
        made["another picture"] = lambda: pictures.roll(1, 0)
    return [
        Row(name, **{score: float(each.mean()) for score, each in measure_all(make(), pictures).items()})
        for name, make in made.items()
    ]


def _generator(pictures: Tensor, seed: int) -> torch.Generator:
    return torch.Generator(pictures.device).manual_seed(checks.integer("seed", seed, 0, 2**31 - 1))


def _grey(pictures: Tensor) -> Tensor:
    return (pictures * pictures.new_tensor(_LUMA)[:, None, None]).sum(1, keepdim=True)


def _around(pictures: Tensor, centre: Tensor, factor: Tensor) -> Tensor:
    """Distances to `centre` times `factor`."""
    return (centre + (pictures - centre) * factor).clamp(0, 1)


def _hue_turn(angles: Tensor) -> Tensor:
    """`[N, 3, 3]`: turns of the colours around the grey axis."""
    third, root = 1 / 3, math.sqrt(1 / 3)
    cosine, sine = angles.cos(), angles.sin()
    same = cosine + third * (1 - cosine)
    left, right = third * (1 - cosine) - root * sine, third * (1 - cosine) + root * sine
    return torch.stack([same, left, right, right, same, left, left, right, same], -1).view(-1, 3, 3)
