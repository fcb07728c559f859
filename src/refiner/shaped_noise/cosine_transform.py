"""The orthonormal two-dimensional cosine transform (DCT-II) of images, and its inverse.

A Fourier transform would make images periodic and tie opposite edges to each other; this one does not.
"""

import math
from functools import cache

import torch
from torch import Tensor


def dct(images: Tensor) -> Tensor:
    """Return the coefficients of images `[..., H, W]`; sums of squares are preserved.

    >>> images = torch.rand(2, 3, 8, 6)
    >>> torch.allclose(inverse_dct(dct(images)), images, atol=1e-6)
    True
    >>> torch.allclose(dct(images)[..., 0, 0], images.mean((-2, -1)) * 48**0.5)
    True
    """
    rows, columns = (_basis(size, images.dtype, images.device) for size in images.shape[-2:])
    return rows @ images @ columns.mT


def inverse_dct(coefficients: Tensor) -> Tensor:
    """Return the images `[..., H, W]` with these coefficients."""
    sizes, dtype, device = coefficients.shape[-2:], coefficients.dtype, coefficients.device
    rows, columns = (_basis(size, dtype, device) for size in sizes)
    return rows.mT @ coefficients @ columns


@cache
def _basis(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The rows are the basis vectors, `[size, size]`."""
    frequency, position = torch.meshgrid(*[torch.arange(size, dtype=torch.float64)] * 2, indexing="ij")
    basis = torch.cos(math.pi * (position + 0.5) * frequency / size) * math.sqrt(2 / size)
    basis[0] /= math.sqrt(2)
    return basis.to(device, dtype)
