"""Normalisation with right derivatives of every order, by each victim's own statistics.

PyTorch's fused layer norm and training-mode batch and instance norm save their statistics as constants.
Under `vmap(grad(...))` their second derivatives are then silently wrong, and without it the third ones.
`nn.GroupNorm` has no such fault, but its second derivative is dozens of passes over memory.

Here a norm is x̂ = (x − mean)·s with s = 1/√(var + ε), followed by its weights. Its derivatives are
∂x̂ = s·P ∂x and ∂s = −s²·mean(x̂·∂x), and those of s·P v have the same forms (see `rows`): two functions, and
every order is right.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrize import is_parametrized

from refiner.core import norm_ops
from refiner.errors import DataError


def write_out(model: nn.Module) -> None:
    """Give every normalisation in `model` its written-out form, without running statistics, in place.

    >>> model = nn.Sequential(nn.BatchNorm2d(3))
    >>> write_out(model)
    >>> type(model[0]).__name__, model[0].running_mean
    ('_WrittenBatchNorm', None)
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm | _InstanceNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
        for plain, written in _WRITTEN:
            # A subclass with a forward of its own is left to the examination.
            own = type(module).forward is not plain.forward or is_parametrized(module)
            if isinstance(module, plain) and not own:
                module.__class__ = written
                break


class _Standardise(torch.autograd.Function):
    """x → x̂ and s, the means taken over the last axis."""

    @staticmethod
    def forward(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return norm_ops.standardise(x, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, v: Tensor, of_s: Tensor) -> tuple[Tensor, None]:
        hat, s = ctx.saved_tensors
        return _slope(v, hat, s, of_s), None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, _: None) -> tuple[Tensor, Tensor]:
        hat, s = ctx.saved_tensors
        return _slope(dx, hat, s, torch.zeros_like(s)), -s.square() * _mean(hat * dx)

    @staticmethod
    def vmap(info: Any, dims: tuple[int, None], x: Tensor, eps: float) -> tuple[Any, tuple[int, int]]:
        return _Standardise.apply(x.movedim(dims[0], 0), eps), (0, 0)  # type: ignore[no-untyped-call]


class _Slope(torch.autograd.Function):
    """v, x̂, s, t → s·P v − t·s²·x̂/n: what slopes v of x̂ and t of s make of x; see `rows.slope`."""

    @staticmethod
    def forward(v: Tensor, hat: Tensor, s: Tensor, t: Tensor) -> Tensor:
        return norm_ops.slope(v, hat, s, t)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return norm_ops.slopes_of_slope(c, *ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, dv: Tensor, dhat: Tensor, ds: Tensor, dt: Tensor) -> Tensor:
        v, hat, s, t = ctx.saved_tensors
        n = hat.shape[-1]
        v_hat, turned = _mean(v * hat), _mean(v * dhat)
        tilt = s * v_hat + t * s.square() / n
        along: Tensor = _slope(dv, hat, s, dt) + (v - _mean(v)) * ds - dhat * tilt
        total: Tensor = along - hat * (ds * v_hat + s * turned + 2 * t * s * ds / n)
        return total

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Tensor) -> tuple[Tensor, int]:
        return _slope(*_stacked(info, dims, given)), 0


def _slope(v: Tensor, hat: Tensor, s: Tensor, t: Tensor) -> Tensor:
    slope: Tensor = _Slope.apply(v, hat, s, t)  # type: ignore[no-untyped-call]
    return slope


class _Scale(torch.autograd.Function):
    """x, w, b → x·w + b, a w and a b for every row."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return torch.addcmul(b, x, w)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.save_for_forward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        slopes: tuple[Tensor, Tensor, Tensor] = _ScaleSlopes.apply(v, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return slopes

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, dw: Tensor, db: Tensor) -> Tensor:
        x, w = ctx.saved_tensors
        along: Tensor = dx * w + x * dw + db
        return along


class _ScaleSlopes(torch.autograd.Function):
    """v, x, w → v·w, Σ v·x and Σ v."""

    @staticmethod
    def forward(v: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return norm_ops.scale_slopes(v, x, w)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, c: Tensor, c_w: Tensor, c_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return norm_ops.slopes_of_scale_slopes(c, c_w, c_b, *ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, dv: Tensor, dx: Tensor, dw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v, x, w = ctx.saved_tensors
        return dv * w + v * dw, (dv * x + v * dx).sum(-1, keepdim=True), dv.sum(-1, keepdim=True)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Tensor) -> tuple[Any, tuple[int, int, int]]:
        return _ScaleSlopes.apply(*_stacked(info, dims, given)), (0, 0, 0)  # type: ignore[no-untyped-call]


def _stacked(info: Any, dims: tuple[int | None, ...], given: tuple[Tensor, ...]) -> Iterator[Tensor]:
    """Under `vmap`: rows of every victim, its axis first."""
    return (
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(given, dims, strict=True)
    )


def _mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def _normalise(x: Tensor, eps: float, first: int) -> Tensor:
    """x̂ over the axes from `first` on."""
    hat: Tensor = _Standardise.apply(x.flatten(first), eps)[0]  # type: ignore[no-untyped-call]
    return hat.view(x.shape)


class _WrittenLayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        out = _normalise(x, self.eps, -len(self.normalized_shape))
        if self.elementwise_affine:
            out = out * self.weight
        return out if getattr(self, "bias", None) is None else out + self.bias


class _WrittenBatchNorm(_BatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        count = x.numel() // x.shape[1]
        if count < 2:
            raise DataError(f"batch norm: {count} value a channel, expected at least 2; use larger batches")
        return _affine(self, _normalise(x.transpose(0, 1), self.eps, 1).transpose(0, 1))

    def _check_input_dim(self, input: Tensor) -> None:  # the shape was checked when the model was examined
        return


class _WrittenInstanceNorm(_InstanceNorm):
    def forward(self, x: Tensor) -> Tensor:
        count = math.prod(x.shape[2:])
        if count < 2:
            raise DataError(f"instance norm: {count} value a channel, expected at least 2; use larger inputs")
        return _affine(self, _normalise(x, self.eps, 2))


class _WrittenGroupNorm(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        grouped = x.reshape(len(x), self.num_groups, -1, *x.shape[2:])
        return _affine(self, _normalise(grouped, self.eps, 2).flatten(1, 2))


def _affine(module: _BatchNorm | _InstanceNorm | nn.GroupNorm, out: Tensor) -> Tensor:
    if not module.affine:
        return out
    planes = out.reshape(*out.shape[:2], -1)
    columns = (value.view(1, -1, 1).expand(len(out), -1, -1) for value in (module.weight, module.bias))
    scaled: Tensor = _Scale.apply(planes, *columns)  # type: ignore[no-untyped-call]
    return scaled.view(out.shape)


_WRITTEN: tuple[tuple[type[nn.Module], type[nn.Module]], ...] = (
    (nn.LayerNorm, _WrittenLayerNorm),
    (_BatchNorm, _WrittenBatchNorm),
    (_InstanceNorm, _WrittenInstanceNorm),
    (nn.GroupNorm, _WrittenGroupNorm),
)
