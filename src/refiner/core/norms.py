"""Normalisation with right derivatives of every order, by each victim's own statistics.

PyTorch's fused layer norm and training-mode batch and instance norm save their statistics as constants.
Under `vmap(grad(...))` their second derivatives are then silently wrong, and without it the third ones.
`nn.GroupNorm` has no such fault, but its second derivative is dozens of passes over memory.

Here a norm is x̂ = (x − mean)·s with s = 1/√(var + ε), followed by its weights. With
P v = v − mean(v) − x̂·mean(v·x̂) its derivatives are ∂x̂ = s·P ∂x and ∂s = −s²·mean(x̂·∂x), and those of s·P v
have the same forms: two functions, and every order is right.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.utils.parametrize import is_parametrized

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

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        var, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
        s = torch.rsqrt(var + eps)
        return (x - mean) * s, s

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, v: Tensor, of_s: Tensor) -> tuple[Tensor, None]:
        hat, s = ctx.saved_tensors
        pull = of_s * s.square() / -hat.shape[-1]
        return torch.addcmul(_slope(v, hat, s), pull, hat), None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, _: None) -> tuple[Tensor, Tensor]:
        hat, s = ctx.saved_tensors
        return _slope(dx, hat, s), -s.square() * _mean(hat * dx)


class _Slope(torch.autograd.Function):
    """v, x̂, s → s·P v."""

    generate_vmap_rule = True

    @staticmethod
    def forward(v: Tensor, hat: Tensor, s: Tensor) -> Tensor:
        shift, tilt = -s * _mean(v), -s * _mean(v * hat)
        return torch.addcmul(torch.addcmul(shift, v, s), hat, tilt)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v, hat, s = ctx.saved_tensors
        mean_c, mean_v = _mean(c), _mean(v)
        c_hat, v_hat, c_v = _mean(c * hat), _mean(v * hat), _mean(c * v)
        of_v = torch.addcmul(torch.addcmul(-s * mean_c, c, s), hat, -s * c_hat)
        of_hat = torch.addcmul(-s * v_hat * c, v, -s * c_hat)
        of_s = hat.shape[-1] * (c_v - mean_c * mean_v - c_hat * v_hat)
        return of_v, of_hat, of_s

    @staticmethod
    def jvp(ctx: Any, dv: Tensor, dhat: Tensor, ds: Tensor) -> Tensor:
        v, hat, s = ctx.saved_tensors
        along = _slope(dv, hat, s) + _slope(v, hat, s) * ds / s
        turned: Tensor = s * (dhat * _mean(v * hat) + hat * _mean(v * dhat))
        total: Tensor = along - turned
        return total


def _slope(v: Tensor, hat: Tensor, s: Tensor) -> Tensor:
    slope: Tensor = _Slope.apply(v, hat, s)  # type: ignore[no-untyped-call]
    return slope


def _mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def _normalise(x: Tensor, eps: float, first: int) -> Tensor:
    """x̂ over the axes from `first` on."""
    # In float32 at least: half precision cancels where the mean is large.
    wide = x.flatten(first).to(torch.promote_types(x.dtype, torch.float32))
    hat: Tensor = _Standardise.apply(wide, eps)[0]  # type: ignore[no-untyped-call]
    return hat.view(x.shape).to(x.dtype)


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
    wide = (1, -1, *(1 for _ in range(out.ndim - 2)))
    return torch.addcmul(module.bias.view(wide), out, module.weight.view(wide))


_WRITTEN: tuple[tuple[type[nn.Module], type[nn.Module]], ...] = (
    (nn.LayerNorm, _WrittenLayerNorm),
    (_BatchNorm, _WrittenBatchNorm),
    (_InstanceNorm, _WrittenInstanceNorm),
    (nn.GroupNorm, _WrittenGroupNorm),
)
