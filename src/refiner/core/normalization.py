"""Normalisation layers with correct derivatives of every order, by each victim's own statistics.

Why not PyTorch's: its fused layer norm and training-mode batch and instance norm save their statistics as
constants. Under `vmap(grad(...))` their second derivatives are then silently wrong (33 to 72 % off on small
random inputs, torch 2.13 on a CPU), and without `vmap` the third ones. `nn.GroupNorm` is correct, but its
second derivative takes dozens of passes over memory. `tests/core/test_normalization.py` fails on the day when
PyTorch's are correct and this module can go.

Here a norm is x̂ = (x − mean)·s with s = 1/√(var + ε), followed by its weight and bias. Its derivatives are
∂x̂ = s·P ∂x and ∂s = −s²·mean(x̂·∂x), and those of s·P v have the same forms (see `norm_ops`), so that two
functions give every order.
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


def replace_norms(model: nn.Module) -> None:
    """Replace every normalisation layer in `model` by one without running statistics, in place.

    >>> model = nn.Sequential(nn.BatchNorm2d(3))
    >>> replace_norms(model)
    >>> type(model[0]).__name__, model[0].running_mean
    ('_SecondOrderBatchNorm', None)
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm | _InstanceNorm):
            module.track_running_stats = False
            module.running_mean = module.running_var = module.num_batches_tracked = None
        for torch_type, replacement in _REPLACEMENTS:
            # A subclass with its own forward is left as it is: model validation judges it.
            overridden = type(module).forward is not torch_type.forward or is_parametrized(module)
            if isinstance(module, torch_type) and not overridden:
                module.__class__ = replacement
                break


class _Standardise(torch.autograd.Function):
    """x → x̂ and s, with means over the last axis."""

    @staticmethod
    def forward(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return norm_ops.standardise(x, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.save_for_forward(*output)

    @staticmethod
    def backward(ctx: Any, v: Tensor, t: Tensor) -> tuple[Tensor, None]:
        hat, s = ctx.saved_tensors
        return _standardise_vjp(v, hat, s, t), None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, _: None) -> tuple[Tensor, Tensor]:
        hat, s = ctx.saved_tensors
        return _standardise_vjp(dx, hat, s, torch.zeros_like(s)), -s.square() * _mean(hat * dx)

    @staticmethod
    def vmap(info: Any, dims: tuple[int, None], x: Tensor, eps: float) -> tuple[Any, tuple[int, int]]:
        return _Standardise.apply(x.movedim(dims[0], 0), eps), (0, 0)  # type: ignore[no-untyped-call]


class _StandardiseVjp(torch.autograd.Function):
    """v, x̂, s, t → s·P v − t·s²·x̂/n; see `norm_ops.standardise_vjp`."""

    @staticmethod
    def forward(v: Tensor, hat: Tensor, s: Tensor, t: Tensor) -> Tensor:
        return norm_ops.standardise_vjp(v, hat, s, t)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, c: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return norm_ops.standardise_vjp_vjp(c, *ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, dv: Tensor, dhat: Tensor, ds: Tensor, dt: Tensor) -> Tensor:
        v, hat, s, t = ctx.saved_tensors
        n = hat.shape[-1]
        v_hat, v_dhat = _mean(v * hat), _mean(v * dhat)
        along_hat = s * v_hat + t * s.square() / n
        tangent: Tensor = _standardise_vjp(dv, hat, s, dt) + (v - _mean(v)) * ds - dhat * along_hat
        total: Tensor = tangent - hat * (ds * v_hat + s * v_dhat + 2 * t * s * ds / n)
        return total

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Tensor, int]:
        return _standardise_vjp(*_victims_first(info, dims, inputs)), 0


def _standardise_vjp(v: Tensor, hat: Tensor, s: Tensor, t: Tensor) -> Tensor:
    cotangent: Tensor = _StandardiseVjp.apply(v, hat, s, t)  # type: ignore[no-untyped-call]
    return cotangent


class _Affine(torch.autograd.Function):
    """x, w, b → x·w + b, with one w and one b for every row."""

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
        cotangents: tuple[Tensor, Tensor, Tensor] = _AffineVjp.apply(v, *ctx.saved_tensors)  # type: ignore[no-untyped-call]
        return cotangents

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, dw: Tensor, db: Tensor) -> Tensor:
        x, w = ctx.saved_tensors
        tangent: Tensor = dx * w + x * dw + db
        return tangent


class _AffineVjp(torch.autograd.Function):
    """v, x, w → v·w, Σ v·x and Σ v; see `norm_ops.affine_vjp`."""

    @staticmethod
    def forward(v: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return norm_ops.affine_vjp(v, x, w)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, c: Tensor, c_w: Tensor, c_b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return norm_ops.affine_vjp_vjp(c, c_w, c_b, *ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, dv: Tensor, dx: Tensor, dw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        v, x, w = ctx.saved_tensors
        return dv * w + v * dw, (dv * x + v * dx).sum(-1, keepdim=True), dv.sum(-1, keepdim=True)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *inputs: Tensor) -> tuple[Any, tuple[int, int, int]]:
        return _AffineVjp.apply(*_victims_first(info, dims, inputs)), (0, 0, 0)  # type: ignore[no-untyped-call]


def _victims_first(info: Any, dims: tuple[int | None, ...], inputs: tuple[Tensor, ...]) -> Iterator[Tensor]:
    """The inputs of a function under `vmap` with the victims' axis first, expanded where they have none."""
    return (
        t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
        for t, dim in zip(inputs, dims, strict=True)
    )


def _mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def _normalise(x: Tensor, eps: float, first: int) -> Tensor:
    """x̂ over the axes from `first` on."""
    hat: Tensor = _Standardise.apply(x.flatten(first), eps)[0]  # type: ignore[no-untyped-call]
    return hat.view(x.shape)


class _SecondOrderLayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        out = _normalise(x, self.eps, -len(self.normalized_shape))
        if self.elementwise_affine:
            out = out * self.weight
        return out if getattr(self, "bias", None) is None else out + self.bias


class _SecondOrderBatchNorm(_BatchNorm):
    def forward(self, x: Tensor) -> Tensor:
        count = x.numel() // x.shape[1]
        if count < 2:
            raise DataError(
                f"batch norm: {count} value per channel: expected at least 2; use larger batches",
                field="batch norm",
                value=count,
                expected="at least 2 values per channel",
            )
        return _apply_weights(self, _normalise(x.transpose(0, 1), self.eps, 1).transpose(0, 1))

    def _check_input_dim(self, input: Tensor) -> None:  # the shape was checked when the model was validated
        return


class _SecondOrderInstanceNorm(_InstanceNorm):
    def forward(self, x: Tensor) -> Tensor:
        count = math.prod(x.shape[2:])
        if count < 2:
            raise DataError(
                f"instance norm: {count} value per channel: expected at least 2; use larger inputs",
                field="instance norm",
                value=count,
                expected="at least 2 values per channel",
            )
        return _apply_weights(self, _normalise(x, self.eps, 2))


class _SecondOrderGroupNorm(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        grouped = x.reshape(len(x), self.num_groups, -1, *x.shape[2:])
        return _apply_weights(self, _normalise(grouped, self.eps, 2).flatten(1, 2))


def _apply_weights(module: _BatchNorm | _InstanceNorm | nn.GroupNorm, out: Tensor) -> Tensor:
    """The normalised `out` times the weight plus the bias of its channels, if the module has them."""
    if not module.affine:
        return out
    planes = out.reshape(*out.shape[:2], -1)
    columns = (value.view(1, -1, 1).expand(len(out), -1, -1) for value in (module.weight, module.bias))
    scaled: Tensor = _Affine.apply(planes, *columns)  # type: ignore[no-untyped-call]
    return scaled.view(out.shape)


_REPLACEMENTS: tuple[tuple[type[nn.Module], type[nn.Module]], ...] = (
    (nn.LayerNorm, _SecondOrderLayerNorm),
    (_BatchNorm, _SecondOrderBatchNorm),
    (_InstanceNorm, _SecondOrderInstanceNorm),
    (nn.GroupNorm, _SecondOrderGroupNorm),
)
