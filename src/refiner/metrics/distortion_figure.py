"""The paper's Figure 3 and its appendix as one image: an original, its distortions, and their scores."""

import os
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, cat

from refiner import checks
from refiner.data.image_grid import write_image_grid
from refiner.errors import DataError
from refiner.evaluation import EvaluationNetwork
from refiner.metrics.distortions import (
    DistortionScores,
    colour_jitter,
    flip,
    mean_colour,
    noise,
    rotate,
    scale,
    shift,
    uniform_noise,
)
from refiner.metrics.image_checks import check_images
from refiner.metrics.metric_registry import score_all

CELLS_PER_ROW = 4
_BORDER = 2


def distort(image: Tensor, seed: int = 0) -> dict[str, Tensor]:
    """Return an image and its distortions at growing strengths, `[1, C, H, W]` each, by name.

    In rows of `CELLS_PER_ROW`: the original, flipped, and two images without its content; then one distortion
    per row. The colour jitter of a row changes in one direction.

    Args:
        image: `[C, H, W]` in 0..1.
        seed: Seed of the random distortions.

    >>> from refiner.data import load_sample
    >>> list(distort(load_sample().images[0]))[:6]
    ['none', 'flip', 'own mean colour', 'uniform noise', 'shift by 1', 'shift by 2']
    """
    if not isinstance(image, Tensor) or image.ndim != 3:
        actual = list(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise DataError(
            f"image: shape {actual}, expected [C, H, W]", field="image", value=actual, expected="[C, H, W]"
        )
    original = check_images("image", image[None])
    EvaluationNetwork.check_images(original)
    images = {
        "none": original,
        "flip": flip(original),
        "own mean colour": mean_colour(original),
        "uniform noise": uniform_noise(original, seed),
    }
    rows: tuple[tuple[str, Callable[[float], Tensor], tuple[float, ...]], ...] = (
        ("shift by {:g}", lambda pixels: shift(original, int(pixels)), (1, 2, 4, 8)),
        ("scale × {:g}", lambda factor: scale(original, factor), (0.8, 0.6, 0.4, 0.2)),
        ("noise, σ {:g}", lambda deviation: noise(original, deviation, seed), (0.03, 0.065, 0.15, 0.3)),
        ("rotation by {:g}°", lambda degrees: rotate(original, degrees), (15, 45, 90, 180)),
        ("colour jitter {:g}", lambda strength: colour_jitter(original, strength, seed), (0.1, 0.25, 0.5, 1)),
    )
    for name, distortion, strengths in rows:
        images |= {name.format(strength): distortion(strength) for strength in strengths}
    return images


def write_distortion_figure(
    path: str | os.PathLike[str], image: Tensor, seed: int = 0, zoom: int = 2
) -> list[DistortionScores]:
    """Write the images of `distort` as one file and return their scores.

    Args:
        path: A `.png` or `.webp` file.
        image: `[C, H, W]` in 0..1.
        seed: Seed of the random distortions.
        zoom: The width of each pixel in the file, 1 to 16.

    Returns:
        The scores of every cell, row by row.

    >>> import tempfile
    >>> from refiner.data import load_sample
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     rows = write_distortion_figure(f"{folder}/figure.png", load_sample().images[0])
    >>> len(rows), rows[0].cells()[:3], rows[1].name
    (24, ('none', '0.0000', '100.0'), 'flip')
    """
    zoom = checks.integer("zoom", zoom, 1, 16)
    distorted = distort(image, seed)
    images = cat(list(distorted.values()))
    scores = score_all(images, distorted["none"].expand_as(images))
    cells = images.repeat_interleave(zoom, 2).repeat_interleave(zoom, 3).expand(-1, 3, -1, -1)
    framed = F.pad(cells, (_BORDER,) * 4, value=1.0)
    write_image_grid(path, (255 * framed.clamp(0, 1)).round().byte(), columns=CELLS_PER_ROW)
    return [
        DistortionScores(name, **{metric: float(each[index]) for metric, each in scores.items()})
        for index, name in enumerate(distorted)
    ]
