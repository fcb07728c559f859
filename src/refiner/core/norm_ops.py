"""Standardisation of rows and its derivatives; on a GPU each function is one kernel.

For rows of n numbers, with means over the last axis: x̂ = (x − mean)·s with s = 1/√(var + ε), called `hat`
and `s` below, and P v = v − mean(v) − x̂·mean(v·x̂). Arguments called v, t and c are cotangents.
"""

from types import ModuleType

import torch
from torch import Tensor

from refiner.core.kernels import kernels_available

LONGEST_ROW = 8192
"""Longer rows don't fit into the registers that one program of a kernel gets."""


def standardise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x̂ and s.

    >>> standardise(torch.tensor([[1.0, 3.0]]), 0.0)
    (tensor([[-1.,  1.]]), tensor([[1.]]))
    """
    if kernels := _kernels(x):
        return kernels.standardise(x, eps)  # type: ignore[no-any-return]
    wide = _at_least_float32(x)
    var, mean = torch.var_mean(wide, dim=-1, correction=0, keepdim=True)
    s = torch.rsqrt(var + eps)
    return ((wide - mean) * s).to(x.dtype), s


def standardise_vjp(v: Tensor, hat: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """s·P v − t·s²·x̂/n: the cotangent of x for cotangents v of x̂ and t of s."""
    if kernels := _kernels(v, hat, s, t):
        return kernels.standardise_vjp(v, hat, s, t)  # type: ignore[no-any-return]
    wide_v, wide_hat = _at_least_float32(v), _at_least_float32(hat)
    along_hat = s * _mean(wide_v * wide_hat) + t * s.square() / hat.shape[-1]
    return ((wide_v - _mean(wide_v)) * s - wide_hat * along_hat).to(v.dtype)


def standardise_vjp_vjp(
    c: Tensor, v: Tensor, hat: Tensor, s: Tensor, t: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The cotangents of v, x̂, s and t for a cotangent c of the result of `standardise_vjp`."""
    if kernels := _kernels(c, v, hat, s, t):
        return kernels.standardise_vjp_vjp(c, v, hat, s, t)  # type: ignore[no-any-return]
    n = hat.shape[-1]
    wide_c, wide_v, wide_hat = _at_least_float32(c), _at_least_float32(v), _at_least_float32(hat)
    mean_c, mean_v = _mean(wide_c), _mean(wide_v)
    c_hat, v_hat, c_v = _mean(wide_c * wide_hat), _mean(wide_v * wide_hat), _mean(wide_c * wide_v)
    v_grad = (wide_c - mean_c - wide_hat * c_hat) * s
    hat_grad = -wide_c * (s * v_hat + t * s.square() / n) - wide_v * (s * c_hat)
    s_grad = n * (c_v - mean_c * mean_v - c_hat * v_hat) - 2 * t * s * c_hat
    return v_grad.to(v.dtype), hat_grad.to(hat.dtype), s_grad, -s.square() * c_hat


def affine_vjp(v: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cotangents of x, w and b for a cotangent v of x·w + b, where each row has one w and one b."""
    if kernels := _kernels(v, x, w):
        return kernels.affine_vjp(v, x, w)  # type: ignore[no-any-return]
    return v * w, _sum(v * x), _sum(v)


def affine_vjp_vjp(
    c: Tensor, c_w: Tensor, c_b: Tensor, v: Tensor, x: Tensor, w: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The cotangents of v, x and w for cotangents of the three results of `affine_vjp`."""
    if kernels := _kernels(c, c_w, c_b, v, x, w):
        return kernels.affine_vjp_vjp(c, c_w, c_b, v, x, w)  # type: ignore[no-any-return]
    return torch.addcmul(torch.addcmul(c_b, c, w), x, c_w), v * c_w, _sum(c * v)


def _sum(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True)


def _mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def _at_least_float32(t: Tensor) -> Tensor:
    """In half precision, differences from a large mean would cancel."""
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _kernels(*tensors: Tensor) -> ModuleType | None:
    if tensors[0].shape[-1] > LONGEST_ROW or not kernels_available(*tensors):
        return None
    from refiner.core.kernels import norm

    return norm
