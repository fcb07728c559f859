"""Gaussian and Laplace draws from a noise source, for matrices `[V, n]` of any size in bounded memory.

A draw is made in float64 from 48 bits. With 24, Gaussian noise would end at 5.9 standard deviations, and one
gradient of ten million entries in twenty-five should hold more than that.
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from refiner.core.noise import NoiseSource

_COLUMNS = 1 << 20
"""How many entries of a victim share a stream. The draws depend on it."""
_ENTRIES = 1 << 22
"""How many entries are drawn at a time. No draw depends on it."""
_FINE = 2.0**-24


def pieces(matrix: Tensor, part: int = 0, *, first: int = 0) -> Iterator[tuple[tuple[slice, slice], Tensor]]:
    """The pieces of `[V, n]`, each with its place and the ids of its rows' streams.

    A victim's streams depend on its place, counted from `first`, and on `part`: the matrix's number among
    several of one upload.

    >>> [(place, ids.tolist()) for place, ids in pieces(torch.zeros(3, 5))]
    [((slice(0, 3, None), slice(0, 5, None)), [0, 65536, 131072])]
    """
    victims, count = matrix.shape
    # 16 bits for the columns' piece, 24 for the victim, 16 for the part.
    rows = (torch.arange(first, first + victims, device=matrix.device) << 16) + (part << 40)
    step = max(1, _ENTRIES // max(1, min(count, _COLUMNS)))
    for index, left in enumerate(range(0, count, _COLUMNS)):
        columns = slice(left, min(left + _COLUMNS, count))
        for top in range(0, victims, step):
            below = slice(top, min(top + step, victims))
            yield (below, columns), rows[below] + index


def gaussian(noise: NoiseSource, ids: Tensor, count: int) -> Tensor:
    """Draws of mean 0 and variance 1, `[*ids.shape, count]` in float64: Box–Muller, both its outputs.

    >>> drawn = gaussian(NoiseSource(seed=0), torch.tensor([0]), 10_000)
    >>> round(float(drawn.var()), 1)
    1.0
    """
    coarse, fine, turn = noise.uniform(ids, (-(-count // 2), 3), torch.float64).unbind(-1)
    radius = _inside(coarse, fine).log_().mul_(-2).sqrt_()
    turn = turn * (2 * math.pi)
    return torch.stack([turn.cos().mul_(radius), turn.sin().mul_(radius)], dim=-1).flatten(-2)[..., :count]


def laplace(noise: NoiseSource, ids: Tensor, count: int) -> Tensor:
    """Draws of the Laplace distribution of mean 0 and scale 1 (variance 2), by its inverse.

    >>> drawn = laplace(NoiseSource(seed=0), torch.tensor([0]), 10_000)
    >>> round(float(drawn.abs().mean()), 1)
    1.0
    """
    coarse, fine = noise.uniform(ids, (count, 2), torch.float64).unbind(-1)
    centred = _inside(coarse, fine).sub_(0.5)
    return (centred.abs() * -2).log1p_().neg_().copysign_(centred)


def _inside(coarse: Tensor, fine: Tensor) -> Tensor:
    """Two draws of 24 bits as one of 48 in (0, 1): the middle of its step, so that no logarithm meets a 0."""
    return (fine + _FINE / 2).mul_(_FINE).add_(coarse)
