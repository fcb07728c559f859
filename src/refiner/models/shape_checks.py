"""Checks of class counts and image shapes that all models share."""

from collections.abc import Sequence

from torch import Tensor

from refiner import checks
from refiner.errors import DataError

MIN_SIDE = 8
"""The smallest height and width of an image."""


def check_classes(value: int) -> int:
    """`value` if it is a number of classes, an integer ≥ 2; otherwise raises a SettingError.

    >>> check_classes(10)
    10
    """
    return checks.integer("classes", value, 2)


def check_input_shape(value: Sequence[int]) -> tuple[int, int, int]:
    """`value` as (channels, height, width); raises a SettingError if it is no such shape.

    >>> check_input_shape([3, 32, 32])
    (3, 32, 32)
    """
    expected = f"(channels ≥ 1, height ≥ {MIN_SIDE}, width ≥ {MIN_SIDE})"
    error = checks.wrong("input_shape", value, expected)
    if not isinstance(value, Sequence) or len(value) != 3:
        raise error
    if any(isinstance(side, bool) or not isinstance(side, int) for side in value):
        raise error
    channels, height, width = value
    if channels < 1 or min(height, width) < MIN_SIDE:
        raise error
    return channels, height, width


def check_images(x: Tensor, shape: tuple[int, ...]) -> None:
    """Raise a DataError unless `x` is a batch `[B, *shape]`.

    >>> import torch
    >>> check_images(torch.zeros(2, 3, 32, 32), (3, 32, 32))
    """
    if not x.dim() or tuple(x.shape[1:]) != shape:
        expected = f"[batch, {', '.join(map(str, shape))}]"
        kind = "images" if len(shape) == 3 else "rows"
        message = f"{kind} of shape {list(x.shape)}: expected {expected}"
        raise DataError(message, field=kind, value=x, expected=expected)
