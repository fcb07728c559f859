"""Gaussian and Laplace draws from a noise source, for matrices `[V, n]` of any size in bounded memory.

Each draw is made in float64 from 48 bits. With 24, Gaussian noise would end at 5.9 standard deviations, and
one gradient of ten million entries in twenty-five should contain more than that.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from refiner.core.noise import NoiseSource

_STREAM_COLUMNS = 1 << 20
"""How many entries of a victim share a stream. The draws depend on it."""
_MAX_ENTRIES = 1 << 22
"""How many entries are drawn at a time. No draw depends on it."""
_RESOLUTION = 2.0**-24
"""The step of one uniform draw."""


def stream_blocks(
    matrix: Tensor, part: int = 0, *, first_victim: int = 0
) -> Iterator[tuple[tuple[slice, slice], Tensor]]:
    """The blocks of `matrix [V, n]` that are drawn at a time, each with the ids of its rows' noise streams.

    Args:
        matrix: Gives the shape and the device.
        part: The matrix's number, where one upload has several; each part has its own streams.
        first_victim: The index of the first row's victim; a victim's streams depend on its index.

    Yields:
        The (rows, columns) of a block, and one stream id per row.

    >>> [(index, ids.tolist()) for index, ids in stream_blocks(torch.zeros(3, 5))]
    [((slice(0, 3, None), slice(0, 5, None)), [0, 65536, 131072])]
    """
    victims, count = matrix.shape
    # 16 bits for the block of columns, 24 for the victim, 16 for the part.
    row_ids = (torch.arange(first_victim, first_victim + victims, device=matrix.device) << 16) + (part << 40)
    step = max(1, _MAX_ENTRIES // max(1, min(count, _STREAM_COLUMNS)))
    for block, left in enumerate(range(0, count, _STREAM_COLUMNS)):
        columns = slice(left, min(left + _STREAM_COLUMNS, count))
        for top in range(0, victims, step):
            rows = slice(top, min(top + step, victims))
            yield (rows, columns), row_ids[rows] + block


def gaussian(noise: NoiseSource, ids: Tensor, count: int) -> Tensor:
    """Draws of mean 0 and variance 1, `[*ids.shape, count]` in float64, by Box–Muller with both its outputs.

    >>> draws = gaussian(NoiseSource(seed=0), torch.tensor([0]), 10_000)
    >>> round(float(draws.var()), 1)
    1.0
    """
    coarse, fine, angle = noise.uniform(ids, (-(-count // 2), 3), torch.float64).unbind(-1)
    radius = _open_interval(coarse, fine).log_().mul_(-2).sqrt_()
    angle = angle * (2 * math.pi)
    return torch.stack([angle.cos().mul_(radius), angle.sin().mul_(radius)], dim=-1).flatten(-2)[..., :count]


def laplace(noise: NoiseSource, ids: Tensor, count: int) -> Tensor:
    """Draws of the Laplace distribution of mean 0 and scale 1 (variance 2), by its inverse.

    >>> draws = laplace(NoiseSource(seed=0), torch.tensor([0]), 10_000)
    >>> round(float(draws.abs().mean()), 1)
    1.0
    """
    coarse, fine = noise.uniform(ids, (count, 2), torch.float64).unbind(-1)
    centred = _open_interval(coarse, fine).sub_(0.5)
    return (centred.abs() * -2).log1p_().neg_().copysign_(centred)


def _open_interval(coarse: Tensor, fine: Tensor) -> Tensor:
    """Two draws of 24 bits as one of 48 in (0, 1): the middle of its step, so that no logarithm is of 0."""
    return (fine + _RESOLUTION / 2).mul_(_RESOLUTION).add_(coarse)
