"""Validation at the border of every metric: two stacks of images in 0..1 that belong together."""

import torch
from torch import Tensor

from refiner.errors import DataError

DTYPES = (torch.float32, torch.float64)
# Interpolation oversteps 0..1 by rounding; an image that was normalised, or not clamped, by far more.
SLACK = 1e-4


def check_images(name: str, images: Tensor) -> Tensor:
    """`images` without their graph; anything but finite floats `[N, C, H, W]` in 0..1 is refused.

    >>> check_images("original", torch.full((2, 3, 8, 8), torch.nan))
    Traceback (most recent call last):
    refiner.errors.DataError: original: NaN or infinity in 2 of 2 images, the first is number 0
    """
    if not isinstance(images, Tensor) or images.dtype not in DTYPES:
        found = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise DataError(f"{name}: {found}, expected a float32 or float64 tensor in 0..1")
    if images.ndim != 4 or not images.numel():
        raise DataError(f"{name}: shape {list(images.shape)}, expected [N, C, H, W] with N ≥ 1")
    images = images.detach()
    broken = ~images.isfinite().flatten(1).all(1)
    if broken.any():
        count, first = int(broken.sum()), int(broken.nonzero()[0])
        raise DataError(
            f"{name}: NaN or infinity in {count} of {len(images)} images, the first is number {first}"
        )
    low, high = float(images.min()), float(images.max())
    if low < -SLACK or high > 1 + SLACK:
        raise DataError(f"{name}: values in [{low:.4g}, {high:.4g}], expected [0, 1]; clamp or rescale first")
    return images


def check_pair(reconstructed: Tensor, original: Tensor) -> tuple[Tensor, Tensor]:
    """Both stacks, checked and of one dtype; the n-th reconstruction belongs to the n-th original.

    >>> check_pair(torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 9))
    Traceback (most recent call last):
    refiner.errors.DataError: reconstructed: shape [2, 3, 8, 8], expected [2, 3, 8, 9] as the originals have
    """
    original = check_images("original", original)
    reconstructed = check_images("reconstructed", reconstructed)
    if reconstructed.shape != original.shape:
        raise DataError(
            f"reconstructed: shape {list(reconstructed.shape)}, "
            f"expected {list(original.shape)} as the originals have"
        )
    if reconstructed.device != original.device:
        raise DataError(
            f"reconstructed: on {reconstructed.device}, expected {original.device} as the originals are"
        )
    dtype = torch.promote_types(reconstructed.dtype, original.dtype)
    return reconstructed.to(dtype), original.to(dtype)
