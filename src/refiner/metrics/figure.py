"""The paper's Figure 3 and its appendix as one image: an original, its distortions, and their scores."""

import os
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, cat

from refiner import checks
from refiner.data.sheet import write_sheet
from refiner.errors import DataError
from refiner.evaluation import EvaluationNetwork
from refiner.metrics.distortions import (
    Row,
    colour_jitter,
    flip,
    mean_colour,
    noise,
    rotate,
    scale,
    shift,
    uniform_noise,
)
from refiner.metrics.measures import measure_all
from refiner.metrics.pairs import check_images

ACROSS = 4
"""Cells in a row of the sheet."""
_GAP = 2


def distorted(image: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """`image [C, H, W]` and what distortions of growing strength make of it, `[1, C, H, W]` each, by name.

    In rows of `ACROSS`: the original, flipped, and two that show nothing of it; then one distortion a row.
    The colour jitter of a row goes one way, ever further.

    >>> from refiner.data import load_sample
    >>> list(distorted(load_sample().images[0]))[:6]
    ['none', 'flip', 'own mean colour', 'uniform noise', 'shift by 1', 'shift by 2']
    """
    if not isinstance(image, Tensor) or image.ndim != 3:
        found = list(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise DataError(f"image: shape {found}, expected [C, H, W]")
    one = check_images("image", image[None])
    EvaluationNetwork.check_many(one)
    made = {
        "none": one,
        "flip": flip(one),
        "own mean colour": mean_colour(one),
        "uniform noise": uniform_noise(one, seed),
    }
    rows: tuple[tuple[str, Callable[[float], Tensor], tuple[float, ...]], ...] = (
        ("shift by {:g}", lambda pixels: shift(one, int(pixels)), (1, 2, 4, 8)),
        ("scale × {:g}", lambda factor: scale(one, factor), (0.8, 0.6, 0.4, 0.2)),
        ("noise, σ {:g}", lambda deviation: noise(one, deviation, seed), (0.03, 0.065, 0.15, 0.3)),
        ("rotation by {:g}°", lambda degrees: rotate(one, degrees), (15, 45, 90, 180)),
        ("colour jitter {:g}", lambda strength: colour_jitter(one, strength, seed), (0.1, 0.25, 0.5, 1)),
    )
    for name, make, strengths in rows:
        made |= {name.format(strength): make(strength) for strength in strengths}
    return made


def write_figure(path: str | os.PathLike[str], image: Tensor, seed: int = 0, zoom: int = 2) -> list[Row]:
    """Write `distorted` as one `.png` or `.webp`, each pixel `zoom` wide; returns the scores of every cell.

    >>> import tempfile
    >>> from refiner.data import load_sample
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = write_figure(f"{folder}/figure.png", load_sample().images[0])
    >>> len(rows), rows[0].cells()[:3], rows[1].name
    (24, ('none', '0.0000', '100.0'), 'flip')
    """
    zoom = checks.integer("zoom", zoom, 1, 16)
    made = distorted(image, seed)
    images = cat(list(made.values()))
    scores = measure_all(images, made["none"].expand_as(images))
    cells = images.repeat_interleave(zoom, 2).repeat_interleave(zoom, 3).expand(-1, 3, -1, -1)
    framed = F.pad(cells, (_GAP,) * 4, value=1.0)
    write_sheet(path, (255 * framed.clamp(0, 1)).round().byte(), columns=ACROSS)
    return [
        Row(name, **{score: float(each[place]) for score, each in scores.items()})
        for place, name in enumerate(made)
    ]
