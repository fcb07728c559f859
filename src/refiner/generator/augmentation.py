"""Changes that real and made images both undergo before they are judged (Zhao et al. 2020).

The discriminator then can't learn 40,000 images by heart, and its slope reaches the generator through them.
"""

import torch
from torch import Tensor


def mirror(images: Tensor, draws: torch.Generator) -> Tensor:
    """Each image `[N, C, H, W]` mirrored or not, by a coin.

    >>> mirror(torch.eye(4).expand(2, 1, 4, 4), torch.Generator()).shape
    torch.Size([2, 1, 4, 4])
    """
    coin = torch.rand(len(images), 1, 1, 1, generator=draws, device=images.device) < 0.5
    return torch.where(coin, images.flip(-1), images)


def disturb(images: Tensor, draws: torch.Generator) -> Tensor:
    """Each image moved by up to an eighth of its side, with a square of half its side made grey.

    >>> grey = torch.full((2, 3, 32, 32), 0.5)
    >>> bool((disturb(grey, torch.Generator()) == grey).all())
    True
    """
    _, _, height, width = images.shape
    rows, row_kept = _axis(len(images), height, draws, images)
    columns, column_kept = _axis(len(images), width, draws, images)
    # Products with shifted unit matrices: quick, and differentiable without a scatter.
    moved = rows @ (images - 0.5) @ columns.transpose(-1, -2)
    kept = row_kept[..., :, None] | column_kept[..., None, :]
    return 0.5 + moved.to(images.dtype) * kept


def _axis(count: int, side: int, draws: torch.Generator, like: Tensor) -> tuple[Tensor, Tensor]:
    """For one axis: matrices `[N, 1, side, side]` that move it, and which places `[N, 1, side]` stay."""
    place = torch.arange(side, device=like.device)
    reach, gap = side // 8, side // 2
    shift = torch.randint(-reach, reach + 1, (count, 1, 1), generator=draws, device=like.device)
    middle = torch.randint(0, side + 1, (count, 1), generator=draws, device=like.device)
    matrix = (place[:, None] + shift == place).to(like.dtype)
    offset = place - middle
    return matrix[:, None], ((offset < -(gap // 2)) | (offset >= gap // 2))[:, None]
