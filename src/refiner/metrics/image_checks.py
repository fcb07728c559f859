"""Validation of the images that the metrics take: stacks `[N, C, H, W]` of finite values in 0..1."""

import torch
from torch import Tensor

from refiner.errors import DataError

DTYPES = (torch.float32, torch.float64)
# Interpolation exceeds 0..1 by rounding; normalised or unclamped images exceed it by far more.
_ROUNDING = 1e-4


def check_images(name: str, images: Tensor) -> Tensor:
    """Return `images` detached from their graph, if they are valid.

    Args:
        name: What the images are called in an error.
        images: float32 or float64 `[N, C, H, W]`, N ≥ 1, in 0..1.

    Raises:
        DataError: The images have another type, shape or range, or contain NaN or infinity.

    >>> check_images("original", torch.full((2, 3, 8, 8), torch.nan))
    Traceback (most recent call last):
    refiner.errors.DataError: original: NaN or infinity in 2 of 2 images, the first is number 0
    """
    if not isinstance(images, Tensor) or images.dtype not in DTYPES:
        actual = images.dtype if isinstance(images, Tensor) else type(images).__name__
        raise _wrong(name, actual, "a float32 or float64 tensor in 0..1")
    if images.ndim != 4 or not images.numel():
        raise _wrong(name, f"shape {list(images.shape)}", "[N, C, H, W] with N ≥ 1")
    images = images.detach()
    broken = ~images.isfinite().flatten(1).all(1)
    if broken.any():
        count, first = int(broken.sum()), int(broken.nonzero()[0])
        raise DataError(
            f"{name}: NaN or infinity in {count} of {len(images)} images, the first is number {first}",
            field=name,
            value=images,
            expected="finite values",
        )
    low, high = float(images.min()), float(images.max())
    if low < -_ROUNDING or high > 1 + _ROUNDING:
        raise _wrong(name, f"values in [{low:.4g}, {high:.4g}]", "[0, 1]; clamp or rescale first")
    return images


def check_pair(reconstructed: Tensor, original: Tensor) -> tuple[Tensor, Tensor]:
    """Return both stacks, if they are valid and of one shape, in one dtype.

    Args:
        reconstructed: `[N, C, H, W]`; the n-th reconstruction belongs to the n-th original.
        original: `[N, C, H, W]` on the same device.

    Raises:
        DataError: A stack is invalid, or shapes or devices differ.

    >>> check_pair(torch.zeros(2, 3, 8, 8), torch.zeros(2, 3, 8, 9))
    Traceback (most recent call last):
    refiner.errors.DataError: reconstructed: shape [2, 3, 8, 8], expected [2, 3, 8, 9] like the originals
    """
    original = check_images("original", original)
    reconstructed = check_images("reconstructed", reconstructed)
    check_same_shape("reconstructed", reconstructed, original)
    if reconstructed.device != original.device:
        raise _wrong("reconstructed", f"on {reconstructed.device}", f"{original.device} like the originals")
    dtype = torch.promote_types(reconstructed.dtype, original.dtype)
    return reconstructed.to(dtype), original.to(dtype)


def check_same_shape(name: str, images: Tensor, original: Tensor) -> None:
    """Raise unless `images`, called `name`, have the shape of the originals."""
    if images.shape != original.shape:
        raise _wrong(name, f"shape {list(images.shape)}", f"{list(original.shape)} like the originals")


def check_same_image_shape(name: str, images: Tensor, original: Tensor) -> Tensor:
    """Return valid `images [M, C, H, W]`, called `name`, if C, H and W are those of the originals."""
    images = check_images(name, images)
    if images.shape[1:] != original.shape[1:]:
        actual = f"images of shape {list(images.shape[1:])}"
        raise _wrong(name, actual, f"{list(original.shape[1:])} like the originals")
    return images


def _wrong(name: str, actual: object, expected: str) -> DataError:
    message = f"{name}: {actual}, expected {expected}"
    return DataError(message, field=name, value=str(actual), expected=expected)
