"""The functions of `core.norm_ops` as Triton kernels: each row is read once and written once.

Why our own: PyTorch has no fused derivatives of a norm's derivatives, so that it composes each of these
functions of many element-wise passes and reductions.

With the same symbols: x̂ (`hat`) and s are the outputs of `standardise`; v, t and c are cotangents.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from refiner.core.kernels import launch_device


def standardise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x̂ and s."""
    x = x.contiguous()
    hat, s = torch.empty_like(x), _one_per_row(x)
    _launch(_standardise, x, x, hat, s, eps)
    return hat, s


def standardise_vjp(v: Tensor, hat: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """s·P v − t·s²·x̂/n: the cotangent of x for cotangents v of x̂ and t of s."""
    v, hat, s, t = (tensor.contiguous() for tensor in (v, hat, s, t))
    out = torch.empty_like(v)
    _launch(_standardise_vjp, v, v, hat, s, t, out)
    return out


def standardise_vjp_vjp(
    c: Tensor, v: Tensor, hat: Tensor, s: Tensor, t: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The cotangents of v, x̂, s and t for a cotangent c of the result of `standardise_vjp`."""
    c, v, hat, s, t = (tensor.contiguous() for tensor in (c, v, hat, s, t))
    v_grad, hat_grad, s_grad, t_grad = (
        torch.empty_like(v),
        torch.empty_like(hat),
        _one_per_row(v),
        _one_per_row(v),
    )
    _launch(_standardise_vjp_vjp, v, c, v, hat, s, t, v_grad, hat_grad, s_grad, t_grad)
    return v_grad, hat_grad, s_grad, t_grad


def affine_vjp(v: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The cotangents v·w of x, Σ v·x of w and Σ v of b, for a cotangent v of x·w + b."""
    v, x, w = (tensor.contiguous() for tensor in (v, x, w))
    x_grad, w_grad, b_grad = torch.empty_like(x), torch.empty_like(w), torch.empty_like(w)
    _launch(_affine_vjp, v, v, x, w, x_grad, w_grad, b_grad)
    return x_grad, w_grad, b_grad


def affine_vjp_vjp(
    c: Tensor, c_w: Tensor, c_b: Tensor, v: Tensor, x: Tensor, w: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The cotangents of v, x and w for cotangents of the three results of `affine_vjp`."""
    c, c_w, c_b, v, x, w = (tensor.contiguous() for tensor in (c, c_w, c_b, v, x, w))
    v_grad, x_grad, w_grad = torch.empty_like(v), torch.empty_like(x), torch.empty_like(w)
    _launch(_affine_vjp_vjp, v, c, c_w, c_b, v, x, w, v_grad, x_grad, w_grad)
    return v_grad, x_grad, w_grad


def _one_per_row(x: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)


def _launch(kernel: triton.JITFunction, like: Tensor, *arguments: Tensor | float) -> None:
    n = like.shape[-1]
    rows = like.numel() // n
    width = triton.next_power_of_2(n)
    rows_per_program = max(512 // width, 1)
    warps = min(max(width * rows_per_program // 512, 1), 8)
    with launch_device(like):
        kernel[(triton.cdiv(rows, rows_per_program),)](
            *arguments, rows, n, ROWS=rows_per_program, WIDTH=width, num_warps=warps
        )


@triton.jit
def _offsets(rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    return row, row < rows, row * n + column, (row < rows) & (column < n)


@triton.jit
def _read(pointer, offset, inside):
    return tl.load(pointer + offset, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _sum(x):
    return tl.sum(x, axis=1, keep_dims=True)


@triton.jit
def _standardise(x, hat, s, eps, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, row_exists, offset, inside = _offsets(rows, n, ROWS, WIDTH)
    value = _read(x, offset, inside)
    centred = tl.where(inside, value - _sum(value) / n, 0.0)
    scale = 1.0 / tl.sqrt(_sum(centred * centred) / n + eps)
    tl.store(hat + offset, centred * scale, mask=inside)
    tl.store(s + row, scale, mask=row_exists)


@triton.jit
def _standardise_vjp(v, hat, s, t, out, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, row_exists, offset, inside = _offsets(rows, n, ROWS, WIDTH)
    v_row, hat_row = _read(v, offset, inside), _read(hat, offset, inside)
    scale, scale_cotangent = _read(s, row, row_exists), _read(t, row, row_exists)
    along_hat = scale * _sum(v_row * hat_row) / n + scale_cotangent * scale * scale / n
    tl.store(out + offset, (v_row - _sum(v_row) / n) * scale - hat_row * along_hat, mask=inside)


@triton.jit
def _standardise_vjp_vjp(
    c, v, hat, s, t, v_grad, hat_grad, s_grad, t_grad, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    row, row_exists, offset, inside = _offsets(rows, n, ROWS, WIDTH)
    c_row, v_row, hat_row = _read(c, offset, inside), _read(v, offset, inside), _read(hat, offset, inside)
    scale, scale_cotangent = _read(s, row, row_exists), _read(t, row, row_exists)
    mean_c, mean_v = _sum(c_row) / n, _sum(v_row) / n
    c_hat, v_hat, c_v = _sum(c_row * hat_row) / n, _sum(v_row * hat_row) / n, _sum(c_row * v_row) / n
    tl.store(v_grad + offset, (c_row - mean_c - hat_row * c_hat) * scale, mask=inside)
    along_hat = scale * v_hat + scale_cotangent * scale * scale / n
    tl.store(hat_grad + offset, -c_row * along_hat - v_row * (scale * c_hat), mask=inside)
    covariance = n * (c_v - mean_c * mean_v - c_hat * v_hat)
    tl.store(s_grad + row, covariance - 2 * scale_cotangent * scale * c_hat, mask=row_exists)
    tl.store(t_grad + row, -scale * scale * c_hat, mask=row_exists)


@triton.jit
def _affine_vjp(v, x, w, x_grad, w_grad, b_grad, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, row_exists, offset, inside = _offsets(rows, n, ROWS, WIDTH)
    v_row, x_row = _read(v, offset, inside), _read(x, offset, inside)
    tl.store(x_grad + offset, v_row * _read(w, row, row_exists), mask=inside)
    tl.store(w_grad + row, _sum(v_row * x_row), mask=row_exists)
    tl.store(b_grad + row, _sum(v_row), mask=row_exists)


@triton.jit
def _affine_vjp_vjp(
    c, c_w, c_b, v, x, w, v_grad, x_grad, w_grad, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    row, row_exists, offset, inside = _offsets(rows, n, ROWS, WIDTH)
    c_row, v_row, x_row = _read(c, offset, inside), _read(v, offset, inside), _read(x, offset, inside)
    w_cotangent = _read(c_w, row, row_exists)
    total = c_row * _read(w, row, row_exists) + x_row * w_cotangent + _read(c_b, row, row_exists)
    tl.store(v_grad + offset, total, mask=inside)
    tl.store(x_grad + offset, v_row * w_cotangent, mask=inside)
    tl.store(w_grad + row, _sum(c_row * v_row), mask=row_exists)
