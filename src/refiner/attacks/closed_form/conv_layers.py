"""Convolutions whose gradient of one sample reveals their input; `conv_inputs` reads it."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from refiner.core.module_inputs import module_input
from refiner.core.task import Parameters, Task
from refiner.errors import DataError

# A sum is zero if it is below this part of the sum of absolute values.
_ZERO_SUM = 1e-4
# The share of zeros of a ReLU's output below which shifted copies can't be told apart.
_FEWEST_ZEROS = 0.1


class ConvLayer(NamedTuple):
    """A convolution whose gradient of one sample reveals its input, with the weight's full name.

    Pairs are of the vertical and the horizontal axis.
    """

    name: str
    weight: str
    channels: int
    size: tuple[int, int]
    """Height and width of the input."""
    positions: tuple[int, int]
    """Height and width of the output."""
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    centred: bool = False
    """Whether the output's gradient sums to zero over the positions, as in front of batch norm."""

    @property
    def shifts(self) -> tuple[int, int]:
        """By how many strides, 0 included, an input can be shifted so that its patches stay in their span.

        The shifted input begins with zeros. They agree with the patch behind them if that begins with as much
        padding as two patches overlap, and no padding at the far end may ask for zeros there.
        """
        rows, columns = (
            count if padding >= kernel - stride and _end(count, kernel, stride, padding) <= size else 1
            for size, count, kernel, stride, padding in zip(*self[3:8], strict=True)
        )
        return rows, columns

    @property
    def block(self) -> tuple[int, int]:
        """Height and width of the first part of the input, which shifts fill with zeros; else of all."""
        height, width = (
            stride if shifts > 1 else size
            for shifts, size, stride in zip(self.shifts, self.size, self.stride, strict=True)
        )
        return height, width


def _end(count: int, kernel: int, stride: int, padding: int) -> int:
    """One more than the last row or column of the input that a convolution reads."""
    return (count - 1) * stride - padding + kernel


def revealing_layer(task: Task) -> ConvLayer | None:
    """Return the first convolution of a model whose gradient of one sample reveals its input.

    Such a convolution has at least as many output channels as positions, overlapping patches and, where its
    input could be a shifted one, a ReLU in front.

    Args:
        task: The model and its loss.

    Returns:
        The layer; None if there is none.

    >>> model = nn.Sequential(nn.Conv2d(2, 20, 3, padding=1), nn.Flatten(), nn.Linear(320, 2))
    >>> layer = revealing_layer(Task(model, example=torch.rand(1, 2, 4, 4)))
    >>> layer.name, layer.channels, layer.size, layer.positions, layer.shifts
    ('0', 2, (4, 4), (4, 4), (1, 1))
    >>> from refiner.models import LeNet
    >>> revealing_layer(Task(LeNet(), example=torch.rand(1, 3, 32, 32))) is None
    True
    """
    parameters = task.parameters()
    draws = torch.rand(1, *task.input_shape, generator=torch.Generator().manual_seed(0))
    example = draws.to(next(iter(parameters.values())))
    found = (_as_revealing(task, parameters, example, layer.name) for layer in task.layers)
    return next((layer for layer in found if layer is not None), None)


def _as_revealing(task: Task, parameters: Parameters, example: Tensor, name: str) -> ConvLayer | None:
    """A layer as a `ConvLayer` if its gradient reveals its input."""
    module, weight = task.module(name), f"{name}.weight" if name else "weight"
    if not isinstance(module, nn.Conv2d) or weight not in task.shapes or isinstance(module.padding, str):
        return None
    if module.groups != 1 or set(module.dilation) != {1} or module.padding_mode != "zeros":
        return None
    try:
        with torch.no_grad():
            given = module_input(task, parameters, example, name)
    except DataError:  # it runs more or less than once
        return None
    kernel, stride, padding = (
        (pair[0], pair[1]) for pair in (module.kernel_size, module.stride, module.padding)
    )
    size = (given.shape[-2], given.shape[-1])
    rows, columns = (
        (extent + 2 * p - k) // s + 1 for extent, k, s, p in zip(size, kernel, stride, padding, strict=True)
    )
    layer = ConvLayer(name, weight, module.in_channels, size, (rows, columns), kernel, stride, padding)
    count = rows * columns
    if count > min(module.out_channels, module.in_channels * math.prod(kernel)):
        return None
    if any(s >= k or _end(n, k, s, p) < extent for extent, n, k, s, p in zip(*layer[3:8], strict=True)):
        return None  # patches do not overlap, or leave a part of the input out
    has_relu = bool((given >= 0).all()) and float((given == 0).double().mean()) >= _FEWEST_ZEROS
    if not has_relu and math.prod(layer.shifts) > 1:
        return None
    return layer._replace(centred=_is_centred(task, parameters, example, name))


def _is_centred(task: Task, parameters: Parameters, example: Tensor, name: str) -> bool:
    """Whether the gradient of a layer's output sums to zero over the positions, for every channel."""
    outputs: list[Tensor] = []
    handle = task.module(name).register_forward_hook(
        lambda _module, _args, output: outputs.append(output.requires_grad_())
    )
    try:
        with torch.enable_grad():
            # Any function of the scores: batch norm centres the gradients of all.
            (gradient,) = torch.autograd.grad(task.scores(parameters, example).square().sum(), outputs)
    finally:
        handle.remove()
    return bool(gradient.sum((2, 3)).abs().sum() < _ZERO_SUM * gradient.abs().sum())
