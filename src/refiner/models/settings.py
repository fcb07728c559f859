"""What the vision models share: their activations, and checks of class count and image shape."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from refiner import checks
from refiner.errors import DataError

# All smooth or piecewise smooth, and never in place: a gradient is differentiated again.
ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "softplus": nn.Softplus,
}

SMALLEST_SIDE = 8


def activation(name: str) -> nn.Module:
    """A new activation module by its name.

    >>> activation("tanh")
    Tanh()
    """
    return ACTIVATIONS[checks.choice("activation", name, ACTIVATIONS)]()


def class_count(value: int) -> int:
    """`value` as a number of classes, at least two.

    >>> class_count(10)
    10
    """
    return checks.integer("classes", value, 2)


def image_shape(value: Sequence[int]) -> tuple[int, int, int]:
    """`value` as (channels, height, width).

    >>> image_shape([3, 32, 32])
    (3, 32, 32)
    """
    least = SMALLEST_SIDE
    error = checks.wrong("input_shape", value, f"(channels ≥ 1, height ≥ {least}, width ≥ {least})")
    if not isinstance(value, Sequence) or len(value) != 3:
        raise error
    if any(isinstance(side, bool) or not isinstance(side, int) for side in value):
        raise error
    channels, height, width = value
    if channels < 1 or min(height, width) < SMALLEST_SIDE:
        raise error
    return channels, height, width


def check_images(x: Tensor, shape: tuple[int, int, int]) -> None:
    """Refuse a batch of images that is not `[B, *shape]`.

    >>> import torch
    >>> check_images(torch.zeros(2, 3, 32, 32), (3, 32, 32))
    """
    if x.dim() != 4 or tuple(x.shape[1:]) != shape:
        expected = ", ".join(map(str, shape))
        raise DataError(f"images of shape {list(x.shape)}: expected [batch, {expected}]")
