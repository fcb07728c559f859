"""Convolution as three bilinear maps that are each other's derivatives, for one victim or for many.

PyTorch's second derivative of a convolution runs kernels as large as the image, and its batched form, a
grouped convolution, is slow on a GPU. Here every derivative of every order is one of

    output(x, w) = y,    input(y, w) = x,    kernel(x, y) = w

with `x [V, B, C, H, W]`, `y [V, B, O, H', W']` and `w [V, O, C, h, w]`; V is 1 for what all victims share.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from refiner.core.kernels import usable
from refiner.core.precision import parts, tensor_float32

Pair = tuple[int, int]
# Sums of so many terms are faster as products in TF32; cuDNN is slower at inputs, so for these half as many.
_TERMS = 128 * 9
# A matrix product of so few rows is wasteful; and so many victims are the most that a GPU's grid can count.
_FEW, _MOST = 32, 2**16 - 1


@dataclass(frozen=True)
class Geometry:
    """What the maps can't all tell from their arguments.

    No tuple: PyTorch would take one apart at every call.
    """

    stride: Pair
    padding: Pair
    dilation: Pair
    image: Pair
    kernel: Pair

    @property
    def result(self) -> Pair:
        """Height and width of an output."""
        high, wide = (
            (self.image[i] + 2 * self.padding[i] - self.dilation[i] * (self.kernel[i] - 1) - 1)
            // self.stride[i]
            + 1
            for i in (0, 1)
        )
        return high, wide


def write_out(model: nn.Module) -> None:
    """Give every plain 2-d convolution in `model` this form, in place.

    >>> model = nn.Sequential(nn.Conv2d(3, 4, 3))
    >>> write_out(model)
    >>> model(torch.zeros(2, 3, 8, 8)).shape
    torch.Size([2, 4, 6, 6])
    """
    for module in model.modules():
        if (
            isinstance(module, nn.Conv2d)
            # A subclass with a forward of its own, and rarer kinds, are left to PyTorch.
            and type(module).forward is nn.Conv2d.forward
            and not is_parametrized(module)
            and module.groups == 1
            and module.padding_mode == "zeros"
            and not isinstance(module.padding, str)
        ):
            module.__class__ = _WrittenConv2d


class _WrittenConv2d(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4:
            return super().forward(x)
        sizes = (self.stride, self.padding, self.dilation, x.shape[-2:], self.kernel_size)
        geometry = Geometry(*(cast(Pair, tuple(size)) for size in sizes))
        out = _apply(_output, x[None], self.weight[None], geometry)[0]
        return out if self.bias is None else out + self.bias.view(-1, 1, 1)


def _output(x: Tensor, w: Tensor, g: Geometry) -> Tensor:
    if len(w) > 1 and _by_columns(x):
        out = w.flatten(2)[:, None] @ _columns(x, g)
        return out.view(*out.shape[:3], *g.result)
    flat, weight = _merge(x, w), w.flatten(0, 1)
    if _by_parts(x, w.shape[2] * w[0, 0, 0].numel(), w):
        (near, both), (kernel, kernels) = parts(flat), parts(weight)
        with tensor_float32(True):
            out = F.conv2d(near, kernel, None, g.stride, g.padding, g.dilation)
            # Each part of the one meets the other part of the other.
            crossed = kernels.flip(1).flatten(1, 2)
            out += F.conv2d(both.flatten(1, 2), crossed, None, g.stride, g.padding, g.dilation)
        return _apart(out, x, w)
    return _apart(F.conv2d(flat, weight, None, g.stride, g.padding, g.dilation, len(w)), x, w)


def _input(y: Tensor, w: Tensor, g: Geometry) -> Tensor:
    if len(w) > 1 and _by_columns(y):
        columns = w.flatten(2).transpose(1, 2)[:, None] @ y.flatten(3)
        flat = _fold(columns.flatten(0, 1), g)
        return flat.view(*columns.shape[:2], *flat.shape[1:])
    victims = max(len(y), len(w))
    like = _merge(y.new_empty(1).expand(victims, y.shape[1], w.shape[2], *g.image), w)
    flat, weight = _merge(y, w), w.flatten(0, 1)
    if _by_parts(y, 2 * w.shape[1] * w[0, 0, 0].numel(), w):
        (near, both), (kernel, kernels) = parts(flat), parts(weight)
        with tensor_float32(True):
            out = _derivative(0, near, like, kernel, g, 1)
            crossed = kernels.flip(1).transpose(0, 1).flatten(0, 1)
            out += _derivative(0, both.flatten(1, 2), like, crossed, g, 1)
        return _apart(out, y, w)
    return _apart(_derivative(0, flat, like, weight, g, len(w)), y, w)


def _kernel(x: Tensor, y: Tensor, g: Geometry) -> Tensor:
    victims = max(len(x), len(y))
    if victims > 1 and _gathered(x, y):
        from refiner.core.kernels.conv_weight_grad import weights

        exact = not torch.backends.cudnn.allow_tf32
        return weights(x, y, g.kernel, g.dilation, g.padding, g.stride, exact)
    if victims > 1 and _by_columns(x):
        out = (y.flatten(3) @ _columns(x, g).transpose(2, 3)).sum(1)
        return out.view(victims, -1, x.shape[2], *g.kernel)
    like = x.new_empty(1).expand(victims * y.shape[2], x.shape[2], *g.kernel)
    x, y = (t.expand(victims, *t.shape[1:]).transpose(0, 1).flatten(1, 2) for t in (x, y))
    out = _derivative(1, y, x, like, g, victims)
    return out.reshape(victims, -1, *out.shape[1:])


Map = Callable[[Tensor, Tensor, Geometry], Tensor]

# For each map of (a, b): what gives the slope in a and in b from the slope s of its value.
_SLOPES: dict[Map, Callable[[Tensor, Tensor, Tensor], tuple[tuple[Map, Tensor, Tensor], ...]]] = {
    _output: lambda x, w, y: ((_input, y, w), (_kernel, x, y)),
    _input: lambda y, w, x: ((_output, x, w), (_kernel, x, y)),
    _kernel: lambda x, y, w: ((_input, y, w), (_output, x, w)),
}


class _Bilinear(torch.autograd.Function):
    @staticmethod
    def forward(which: Map, a: Tensor, b: Tensor, geometry: Geometry) -> Tensor:
        return which(a, b, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Map, Tensor, Tensor, Geometry], output: Tensor) -> None:
        ctx.which, a, b, ctx.geometry = inputs
        ctx.save_for_backward(a, b)
        ctx.save_for_forward(a, b)

    @staticmethod
    def backward(ctx: Any, s: Tensor) -> tuple[Tensor | None, ...]:
        given: tuple[Tensor, Tensor] = ctx.saved_tensors
        slopes = [
            # What victims share gets the sum of their slopes.
            _apply(which, a, b, ctx.geometry).sum_to_size(like.shape) if wanted else None
            for (which, a, b), like, wanted in zip(
                _SLOPES[ctx.which](given[0], given[1], s), given, ctx.needs_input_grad[1:3], strict=True
            )
        ]
        return None, *slopes, None

    @staticmethod
    def jvp(ctx: Any, _w: None, da: Tensor | None, db: Tensor | None, _g: None) -> Tensor:
        a, b = ctx.saved_tensors
        terms = [_apply(ctx.which, da, b, ctx.geometry)] if da is not None else []
        terms += [_apply(ctx.which, a, db, ctx.geometry)] if db is not None else []
        return sum(terms[1:], terms[0])

    @staticmethod
    def vmap(
        info: Any, dims: tuple[int | None, ...], which: Map, a: Tensor, b: Tensor, geometry: Geometry
    ) -> tuple[Tensor, int]:
        # The axis of vmap becomes V.
        a, b = (
            t if dim is None else t.movedim(dim, 0).flatten(0, 1)
            for t, dim in zip((a, b), dims[1:3], strict=True)
        )
        return _apply(which, a, b, geometry)[:, None], 0


def _apply(which: Map, a: Tensor, b: Tensor, geometry: Geometry) -> Tensor:
    value: Tensor = _Bilinear.apply(which, a, b, geometry)  # type: ignore[no-untyped-call]
    return value


def _merge(t: Tensor, w: Tensor) -> Tensor:
    """Victims in one batch where the kernel is shared, otherwise as groups of channels."""
    if len(w) == 1:
        return t.flatten(0, 1)
    return t.expand(len(w), *t.shape[1:]).transpose(0, 1).flatten(1, 2)


def _apart(t: Tensor, like: Tensor, w: Tensor) -> Tensor:
    """The inverse of `_merge`."""
    if len(w) == 1:
        return t.reshape(*like.shape[:2], *t.shape[1:])
    return t.reshape(len(t), len(w), -1, *t.shape[2:]).transpose(0, 1)


def _derivative(of: int, y: Tensor, x: Tensor, w: Tensor, g: Geometry, groups: int) -> Tensor:
    """The slope of a convolution in its input (0) or its kernel (1), of which only the shape counts here."""
    out: tuple[Tensor, ...] = torch.ops.aten.convolution_backward(
        y, x, w, None, g.stride, g.padding, g.dilation, False, [0, 0], groups, [of == 0, of == 1, False]
    )
    return out[of]


def _by_columns(t: Tensor) -> bool:
    """Where matrix products over columns of pixels beat grouped convolutions: four times on a GPU."""
    return t.is_cuda


def _gathered(x: Tensor, y: Tensor) -> bool:
    """Where a kernel of our own beats those in turn: they are wasteful with few channels."""
    return usable(x, y) and y.shape[2] <= _FEW and max(len(x), len(y)) <= _MOST


def _by_parts(t: Tensor, terms: int, w: Tensor) -> bool:
    """Where float32 is made of products in TF32: twice as fast on an H200's tensor cores."""
    exact = t.is_cuda and t.dtype == torch.float32 and not torch.backends.cudnn.allow_tf32
    return exact and len(w) == 1 and terms >= _TERMS


def _columns(x: Tensor, g: Geometry) -> Tensor:
    """What each output pixel sees, `[V, B, C·h·w, H'·W']`; `F.unfold` takes a GPU image by image."""
    up, side = g.padding
    padded = F.pad(x.flatten(0, 1), (side, side, up, up))
    count, channels, row, pixel = padded.stride()
    view = padded.as_strided(
        (len(padded), x.shape[2], *g.kernel, *g.result),
        (
            count,
            channels,
            row * g.dilation[0],
            pixel * g.dilation[1],
            row * g.stride[0],
            pixel * g.stride[1],
        ),
    )
    return view.reshape(*x.shape[:2], -1, g.result[0] * g.result[1])


def _fold(columns: Tensor, g: Geometry) -> Tensor:
    """The transpose of `_columns`: every pixel adds up what its outputs hold for it."""
    sizes = (g.image, g.kernel, g.dilation, g.padding, g.stride)
    if not usable(columns):
        return F.fold(columns, *sizes)
    from refiner.core.kernels.fold import fold

    return fold(columns, *sizes)
