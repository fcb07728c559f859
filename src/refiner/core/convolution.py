"""Convolution as three bilinear maps that are each other's derivatives, for one victim or for many.

Why not PyTorch's: its second derivative of a convolution runs kernels as large as the image, and its batched
form, a grouped convolution, is slow on a GPU. Here every derivative of every order is one of

    conv_output(x, w) = y,    conv_input_grad(y, w) = x,    conv_weight_grad(x, y) = w

with `x [V, B, C, H, W]`, `y [V, B, O, H', W']` and `w [V, O, C, h, w]`; V is 1 for a tensor that all victims
share.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from refiner.core.kernels import kernels_available
from refiner.core.precision import split_tf32, tensor_float32

Pair = tuple[int, int]
# Sums of at least so many terms are faster as TF32 products; cuDNN is slower at input gradients, so half as
# many there.
_MIN_TF32_TERMS = 128 * 9
# Our kernel is faster up to so many rows (output channels), and a GPU's grid has room for so many victims.
_MAX_KERNEL_ROWS, _MAX_GRID = 32, 2**16 - 1


@dataclass(frozen=True)
class Geometry:
    """The sizes of a convolution that its three maps can't all infer from their arguments.

    A dataclass, not a tuple: PyTorch would flatten a tuple at every call.
    """

    stride: Pair
    padding: Pair
    dilation: Pair
    image: Pair
    kernel: Pair

    @property
    def output(self) -> Pair:
        """Height and width of an output."""
        height, width = (
            (self.image[i] + 2 * self.padding[i] - self.dilation[i] * (self.kernel[i] - 1) - 1)
            // self.stride[i]
            + 1
            for i in (0, 1)
        )
        return height, width


def replace_convolutions(model: nn.Module) -> None:
    """Replace every plain 2-d convolution in `model` by a `BilinearConv2d`, in place.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3))
    >>> replace_convolutions(model)
    >>> model(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 4, 6, 6])
    """
    for module in model.modules():
        if (
            isinstance(module, nn.Conv2d)
            # A subclass with its own forward, and rarer kinds, are left to PyTorch.
            and type(module).forward is nn.Conv2d.forward
            and not is_parametrized(module)
            and module.groups == 1
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        ):
            module.__class__ = BilinearConv2d


class BilinearConv2d(nn.Conv2d):
    """A 2-d convolution whose derivatives of every order are the maps of this module."""

    def forward(self, x: Tensor) -> Tensor:
        """The outputs `[B, O, H', W']` of `x [B, C, H, W]`."""
        if x.ndim != 4:
            return super().forward(x)
        sizes = (self.stride, self.padding, self.dilation, x.shape[-2:], self.kernel_size)
        geometry = Geometry(*(cast(Pair, tuple(size)) for size in sizes))
        out = _apply(conv_output, x[None], self.weight[None], geometry)[0]
        return out if self.bias is None else out + self.bias.view(-1, 1, 1)


def conv_output(x: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """The convolution of inputs `x` with weights `w`."""
    if len(w) > 1 and _use_columns(x):
        out = w.flatten(2)[:, None] @ _columns(x, g)
        return out.view(*out.shape[:3], *g.output)
    flat, weight = _merge_victims(x, w), w.flatten(0, 1)
    if _use_tf32_split(x, w.shape[2] * w[0, 0, 0].numel(), w):
        (x_rounded, x_both), (w_rounded, w_both) = split_tf32(flat), split_tf32(weight)
        with tensor_float32(True):
            out = F.conv2d(x_rounded, w_rounded, None, g.stride, g.padding, g.dilation)
            # Rounded values times remainders, and remainders times rounded values.
            w_crossed = w_both.flip(1).flatten(1, 2)
            out += F.conv2d(x_both.flatten(1, 2), w_crossed, None, g.stride, g.padding, g.dilation)
        return _split_victims(out, x, w)
    return _split_victims(F.conv2d(flat, weight, None, g.stride, g.padding, g.dilation, len(w)), x, w)


def conv_input_grad(y: Tensor, w: Tensor, g: Geometry) -> Tensor:
    """The cotangent of the input for a cotangent `y` of the output."""
    if len(w) > 1 and _use_columns(y):
        columns = w.flatten(2).transpose(1, 2)[:, None] @ y.flatten(3)
        flat = _fold(columns.flatten(0, 1), g)
        return flat.view(*columns.shape[:2], *flat.shape[1:])
    victims = max(len(y), len(w))
    like = _merge_victims(y.new_empty(1).expand(victims, y.shape[1], w.shape[2], *g.image), w)
    flat, weight = _merge_victims(y, w), w.flatten(0, 1)
    if _use_tf32_split(y, 2 * w.shape[1] * w[0, 0, 0].numel(), w):
        (y_rounded, y_both), (w_rounded, w_both) = split_tf32(flat), split_tf32(weight)
        with tensor_float32(True):
            out = _conv_backward(0, y_rounded, like, w_rounded, g, 1)
            w_crossed = w_both.flip(1).transpose(0, 1).flatten(0, 1)
            out += _conv_backward(0, y_both.flatten(1, 2), like, w_crossed, g, 1)
        return _split_victims(out, y, w)
    return _split_victims(_conv_backward(0, flat, like, weight, g, len(w)), y, w)


def conv_weight_grad(x: Tensor, y: Tensor, g: Geometry) -> Tensor:
    """The cotangent of the weights for inputs `x` and a cotangent `y` of the output."""
    victims = max(len(x), len(y))
    if victims > 1 and _use_kernel(x, y):
        from refiner.core.kernels import conv_weight_grad as kernel

        exact = not torch.backends.cudnn.allow_tf32
        return kernel.conv_weight_grad(x, y, g.kernel, g.dilation, g.padding, g.stride, exact)
    if victims > 1 and _use_columns(x):
        out = (y.flatten(3) @ _columns(x, g).transpose(2, 3)).sum(1)
        return out.view(victims, -1, x.shape[2], *g.kernel)
    like = x.new_empty(1).expand(victims * y.shape[2], x.shape[2], *g.kernel)
    x, y = (t.expand(victims, *t.shape[1:]).transpose(0, 1).flatten(1, 2) for t in (x, y))
    out = _conv_backward(1, y, x, like, g, victims)
    return out.reshape(victims, -1, *out.shape[1:])


BilinearMap = Callable[[Tensor, Tensor, Geometry], Tensor]

# For each map of (a, b) and a cotangent of its value: the maps, with arguments, that give the cotangents of a
# and b.
_VJPS: dict[
    BilinearMap, Callable[[Tensor, Tensor, Tensor], tuple[tuple[BilinearMap, Tensor, Tensor], ...]]
] = {
    conv_output: lambda x, w, y: ((conv_input_grad, y, w), (conv_weight_grad, x, y)),
    conv_input_grad: lambda y, w, x: ((conv_output, x, w), (conv_weight_grad, x, y)),
    conv_weight_grad: lambda x, y, w: ((conv_input_grad, y, w), (conv_output, x, w)),
}


class _Bilinear(torch.autograd.Function):
    @staticmethod
    def forward(function: BilinearMap, a: Tensor, b: Tensor, geometry: Geometry) -> Tensor:
        return function(a, b, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[BilinearMap, Tensor, Tensor, Geometry], output: Tensor) -> None:
        ctx.function, a, b, ctx.geometry = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        inputs: tuple[Tensor, Tensor] = ctx.saved_tensors
        cotangents = [
            # A tensor that victims share gets the sum of their cotangents.
            _apply(function, a, b, ctx.geometry).sum_to_size(like.shape) if needed else None
            for (function, a, b), like, needed in zip(
                _VJPS[ctx.function](inputs[0], inputs[1], cotangent),
                inputs,
                ctx.needs_input_grad[1:3],
                strict=True,
            )
        ]
        return None, *cotangents, None

    @staticmethod
    def jvp(ctx: Any, _f: None, da: Tensor | None, db: Tensor | None, _g: None) -> Tensor:
        a, b = ctx.saved_tensors
        terms = [_apply(ctx.function, da, b, ctx.geometry)] if da is not None else []
        terms += [_apply(ctx.function, a, db, ctx.geometry)] if db is not None else []
        return sum(terms[1:], terms[0])

    @staticmethod
    def vmap(
        info: Any,
        dims: tuple[int | None, ...],
        function: BilinearMap,
        a: Tensor,
        b: Tensor,
        geometry: Geometry,
    ) -> tuple[Tensor, int]:
        # The axis of vmap becomes V.
        a, b = (
            t if dim is None else t.movedim(dim, 0).flatten(0, 1)
            for t, dim in zip((a, b), dims[1:3], strict=True)
        )
        return _apply(function, a, b, geometry)[:, None], 0


def _apply(function: BilinearMap, a: Tensor, b: Tensor, geometry: Geometry) -> Tensor:
    value: Tensor = _Bilinear.apply(function, a, b, geometry)  # type: ignore[no-untyped-call]
    return value


def _merge_victims(t: Tensor, w: Tensor) -> Tensor:
    """Victims in one batch where the weights are shared, otherwise as groups of channels."""
    if len(w) == 1:
        return t.flatten(0, 1)
    return t.expand(len(w), *t.shape[1:]).transpose(0, 1).flatten(1, 2)


def _split_victims(t: Tensor, like: Tensor, w: Tensor) -> Tensor:
    """The inverse of `_merge_victims`."""
    if len(w) == 1:
        return t.reshape(*like.shape[:2], *t.shape[1:])
    return t.reshape(len(t), len(w), -1, *t.shape[2:]).transpose(0, 1)


def _conv_backward(of: int, y: Tensor, x: Tensor, w: Tensor, g: Geometry, groups: int) -> Tensor:
    """PyTorch's gradient in the input (`of` = 0) or the weight (1), of which only the shape is used."""
    out: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        y, x, w, None, g.stride, g.padding, g.dilation, False, [0, 0], groups, [of == 0, of == 1, False]
    )
    return out[of]


def _use_columns(t: Tensor) -> bool:
    """Whether products over columns of pixels are faster than grouped convolutions: four times on a GPU."""
    return t.is_cuda


def _use_kernel(x: Tensor, y: Tensor) -> bool:
    """Whether our own kernel is faster than such matrix products: they are wasteful with few channels."""
    return kernels_available(x, y) and y.shape[2] <= _MAX_KERNEL_ROWS and max(len(x), len(y)) <= _MAX_GRID


def _use_tf32_split(t: Tensor, terms: int, w: Tensor) -> bool:
    """Whether float32 is made of TF32 products: twice as fast on an H200's tensor cores."""
    exact = t.is_cuda and t.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32
    return exact and len(w) == 1 and terms >= _MIN_TF32_TERMS


def _columns(x: Tensor, g: Geometry) -> Tensor:
    """The pixels that each output sees, `[V, B, C·h·w, H'·W']`; on a GPU `F.unfold` goes image by image."""
    vertical, horizontal = g.padding
    padded = F.pad(x.flatten(0, 1), (horizontal, horizontal, vertical, vertical))
    image, channel, row, pixel = padded.stride()
    view = padded.as_strided(
        (len(padded), x.shape[2], *g.kernel, *g.output),
        (
            image,
            channel,
            row * g.dilation[0],
            pixel * g.dilation[1],
            row * g.stride[0],
            pixel * g.stride[1],
        ),
    )
    return view.reshape(*x.shape[:2], -1, g.output[0] * g.output[1])


def _fold(columns: Tensor, g: Geometry) -> Tensor:
    """The transpose of `_columns`: every pixel is the sum of its entries in all columns."""
    sizes = (g.image, g.kernel, g.dilation, g.padding, g.stride)
    if not kernels_available(columns):
        return F.fold(columns, *sizes)
    from refiner.core.kernels.fold import fold

    return fold(columns, *sizes)
