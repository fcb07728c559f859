"""Differentiable augmentation of real and generated images before they reach the discriminator.

Zhao, Liu, Lin, Zhu and Han, "Differentiable Augmentation for Data-Efficient GAN Training", NeurIPS 2020. It
keeps the discriminator from memorising the training images, and gradients pass through it to the generator.
"""

import torch
from torch import Tensor


def random_flip(images: Tensor, draws: torch.Generator) -> Tensor:
    """Return images `[N, C, H, W]`, each mirrored with probability 1/2.

    >>> random_flip(torch.eye(4).expand(2, 1, 4, 4), torch.Generator()).shape
    torch.Size([2, 1, 4, 4])
    """
    flipped = torch.rand(len(images), 1, 1, 1, generator=draws, device=images.device) < 0.5
    return torch.where(flipped, images.flip(-1), images)


def shift_and_cut_out(images: Tensor, draws: torch.Generator) -> Tensor:
    """Return images shifted by up to an eighth of their side, with a square of half their side made grey.

    >>> grey = torch.full((2, 3, 32, 32), 0.5)
    >>> bool((shift_and_cut_out(grey, torch.Generator()) == grey).all())
    True
    """
    _, _, height, width = images.shape
    shift_rows, rows_outside = _shift_and_gap(len(images), height, draws, images)
    shift_columns, columns_outside = _shift_and_gap(len(images), width, draws, images)
    # Products with shifted identity matrices: fast, and differentiable without a scatter.
    shifted = shift_rows @ (images - 0.5) @ shift_columns.transpose(-1, -2)
    outside = rows_outside[..., :, None] | columns_outside[..., None, :]
    return 0.5 + shifted.to(images.dtype) * outside


def _shift_and_gap(count: int, side: int, draws: torch.Generator, like: Tensor) -> tuple[Tensor, Tensor]:
    """For one axis: matrices `[N, 1, side, side]` that shift it; positions `[N, 1, side]` outside the gap."""
    position = torch.arange(side, device=like.device)
    max_shift, gap = side // 8, side // 2
    shift = torch.randint(-max_shift, max_shift + 1, (count, 1, 1), generator=draws, device=like.device)
    middle = torch.randint(0, side + 1, (count, 1), generator=draws, device=like.device)
    matrix = (position[:, None] + shift == position).to(like.dtype)
    offset = position - middle
    return matrix[:, None], ((offset < -(gap // 2)) | (offset >= gap // 2))[:, None]
