"""What normalisation does to rows of numbers; on a GPU each function is one kernel.

With x̂ = (x − mean)·s, s = 1/√(var + ε) and P v = v − mean(v) − x̂·mean(v·x̂), all means over the last axis.
"""

from types import ModuleType

import torch
from torch import Tensor

from refiner.core.kernels import usable


def standardise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x̂ and s.

    >>> standardise(torch.tensor([[1.0, 3.0]]), 0.0)
    (tensor([[-1.,  1.]]), tensor([[1.]]))
    """
    if kernels := _kernels(x):
        return kernels.standardise(x, eps)  # type: ignore[no-any-return]
    wide = _wide(x)
    var, mean = torch.var_mean(wide, dim=-1, correction=0, keepdim=True)
    s = torch.rsqrt(var + eps)
    return ((wide - mean) * s).to(x.dtype), s


def slope(v: Tensor, hat: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """s·P v − t·s²·x̂/n: what slopes v of x̂ and t of s make of x."""
    if kernels := _kernels(v, hat, s, t):
        return kernels.slope(v, hat, s, t)  # type: ignore[no-any-return]
    wide_v, wide_hat = _wide(v), _wide(hat)
    tilt = s * _mean(wide_v * wide_hat) + t * s.square() / hat.shape[-1]
    return ((wide_v - _mean(wide_v)) * s - wide_hat * tilt).to(v.dtype)


def slopes_of_slope(
    c: Tensor, v: Tensor, hat: Tensor, s: Tensor, t: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a slope c of `slope` makes of its four arguments."""
    if kernels := _kernels(c, v, hat, s, t):
        return kernels.slopes_of_slope(c, v, hat, s, t)  # type: ignore[no-any-return]
    n = hat.shape[-1]
    wide_c, wide_v, wide_hat = _wide(c), _wide(v), _wide(hat)
    mean_c, mean_v = _mean(wide_c), _mean(wide_v)
    c_hat, v_hat, c_v = _mean(wide_c * wide_hat), _mean(wide_v * wide_hat), _mean(wide_c * wide_v)
    of_v = (wide_c - mean_c - wide_hat * c_hat) * s
    of_hat = -wide_c * (s * v_hat + t * s.square() / n) - wide_v * (s * c_hat)
    of_s = n * (c_v - mean_c * mean_v - c_hat * v_hat) - 2 * t * s * c_hat
    return of_v.to(v.dtype), of_hat.to(hat.dtype), of_s, -s.square() * c_hat


def scale_slopes(v: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What a slope v of x·w + b makes of x, w and b, where every row has a w and a b."""
    if kernels := _kernels(v, x, w):
        return kernels.scale_slopes(v, x, w)  # type: ignore[no-any-return]
    return v * w, _sum(v * x), _sum(v)


def slopes_of_scale_slopes(
    c: Tensor, c_w: Tensor, c_b: Tensor, v: Tensor, x: Tensor, w: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What slopes of the three results of `scale_slopes` make of its arguments."""
    if kernels := _kernels(c, c_w, c_b, v, x, w):
        return kernels.slopes_of_scale_slopes(c, c_w, c_b, v, x, w)  # type: ignore[no-any-return]
    return torch.addcmul(torch.addcmul(c_b, c, w), x, c_w), v * c_w, _sum(c * v)


def _sum(x: Tensor) -> Tensor:
    return x.sum(-1, keepdim=True)


def _mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def _wide(t: Tensor) -> Tensor:
    """In float32 at least: half precision cancels where the mean is large."""
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _kernels(*tensors: Tensor) -> ModuleType | None:
    if tensors[0].shape[-1] > LONGEST or not usable(*tensors):
        return None
    from refiner.core.kernels import norm

    return norm


LONGEST = 8192
"""Longer rows don't fit into the registers that one program gets."""
