"""The range of a model's inputs: one for all channels, or one for each; and maps between it and 0..1."""

import torch
from torch import Tensor

from refiner import checks

InputRange = tuple[float, float] | tuple[tuple[float, ...], tuple[float, ...]]
"""`(low, high)`, or the lows and the highs of all channels: `((l1, l2, l3), (h1, h2, h3))`."""

UNIT_RANGE = (0.0, 1.0)
_EXPECTED = "two numbers, the lower first, or a tuple of lows and one of highs, a number for each channel"


def check_input_range(value: object) -> InputRange:
    """Return a range, or raise a `SettingError` if it is none.

    Args:
        value: What the user gave.

    Returns:
        The same, as floats.

    >>> check_input_range(((0, -1), (1, 1)))
    ((0.0, -1.0), (1.0, 1.0))
    >>> check_input_range((1, 0))
    Traceback (most recent call last):
    refiner.errors.SettingError: input_range = (1, 0): expected two numbers, the lower first, ...
    """
    if not isinstance(value, tuple) or len(value) != 2:
        raise checks.wrong("input_range", value, _EXPECTED)
    parts = [part if isinstance(part, tuple) else (part,) for part in value]
    per_channel = [isinstance(part, tuple) for part in value]
    if per_channel[0] != per_channel[1] or len(parts[0]) != len(parts[1]) or not parts[0]:
        raise checks.wrong("input_range", value, _EXPECTED)
    lows, highs = (tuple(checks.number("input_range", n, -1e6, 1e6) for n in part) for part in parts)
    if any(low >= high for low, high in zip(lows, highs, strict=True)):
        raise checks.wrong("input_range", value, _EXPECTED)
    return (lows, highs) if per_channel[0] else (lows[0], highs[0])


def check_scalar_range(value: object) -> tuple[float, float]:
    """Return a range that is the same for all channels, or raise a `SettingError`.

    Args:
        value: What the user gave.

    Returns:
        The lower and the upper end.

    >>> check_scalar_range((0, 2))
    (0.0, 2.0)
    """
    low, high = check_input_range(value)
    if isinstance(low, tuple) or isinstance(high, tuple):
        raise checks.wrong("input_range", value, "two numbers, the lower first")
    return low, high


def is_per_channel(input_range: InputRange) -> bool:
    """Whether every channel has a range of its own.

    >>> is_per_channel((0.0, 1.0)), is_per_channel(((0.0,), (1.0,)))
    (False, True)
    """
    return isinstance(input_range[0], tuple)


def check_channels(input_range: InputRange, input_shape: tuple[int, ...]) -> None:
    """Raise a `SettingError` unless a range for each channel fits inputs of a shape.

    Args:
        input_range: The range.
        input_shape: The shape of one input, channels first.

    >>> check_channels(((0.0, 0.0), (1.0, 1.0)), (3, 32, 32))
    Traceback (most recent call last):
    refiner.errors.SettingError: input_range = ...: expected 3 lows and highs, for inputs of shape [3, 32, 32]
    """
    if isinstance(input_range[0], tuple) and (not input_shape or len(input_range[0]) != input_shape[0]):
        channels = input_shape[0] if input_shape else 1
        expected = f"{channels} lows and highs, for inputs of shape {list(input_shape)}"
        raise checks.wrong("input_range", input_range, expected)


def to_unit_range(x: Tensor, input_range: InputRange, input_axes: int = 3) -> Tensor:
    """Inputs of a range as values in 0..1.

    Args:
        x: Inputs `[…, *input]`.
        input_range: Their range.
        input_axes: The number of axes of one input; the first is that of its channels.

    Returns:
        A tensor of the same shape.

    >>> to_unit_range(torch.tensor([[0.0, 4.0]]), ((-2.0, 0.0), (2.0, 8.0)), input_axes=1)
    tensor([[0.5000, 0.5000]])
    """
    low, high = (_broadcast(part, x, input_axes) for part in input_range)
    return (x - low) / (high - low)


def from_unit_range(x: Tensor, input_range: InputRange, input_axes: int = 3) -> Tensor:
    """Values in 0..1 as inputs of a range: the inverse of `to_unit_range`.

    Args:
        x: Values `[…, *input]`.
        input_range: The range.
        input_axes: As in `to_unit_range`.

    Returns:
        A tensor of the same shape.
    """
    low, high = (_broadcast(part, x, input_axes) for part in input_range)
    return low + (high - low) * x


def _broadcast(values: float | tuple[float, ...], like: Tensor, input_axes: int) -> Tensor:
    """Numbers along the axis of channels; filled on the device, as a CUDA graph requires."""
    shape = (1,) * input_axes
    numbers = values if isinstance(values, tuple) else (values,)
    filled = [torch.full(shape, number, dtype=like.dtype, device=like.device) for number in numbers]
    return torch.cat(filled)
