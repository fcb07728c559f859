"""The functions of `core.rows` as Triton kernels: each row is read once and written once."""

import torch
import triton
import triton.language as tl
from torch import Tensor


def standardise(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x̂ and s."""
    x = x.contiguous()
    hat, s = torch.empty_like(x), _column(x)
    _launch(_standardise, x, x, hat, s, eps)
    return hat, s


def slope(v: Tensor, hat: Tensor, s: Tensor, t: Tensor) -> Tensor:
    """s·P v − t·s²·x̂/n."""
    v, hat, s, t = (each.contiguous() for each in (v, hat, s, t))
    out = torch.empty_like(v)
    _launch(_slope, v, v, hat, s, t, out)
    return out


def slopes_of_slope(
    c: Tensor, v: Tensor, hat: Tensor, s: Tensor, t: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What a slope c of `slope` makes of v, x̂, s and t."""
    c, v, hat, s, t = (each.contiguous() for each in (c, v, hat, s, t))
    of_v, of_hat, of_s, of_t = torch.empty_like(v), torch.empty_like(hat), _column(v), _column(v)
    _launch(_slopes_of_slope, v, c, v, hat, s, t, of_v, of_hat, of_s, of_t)
    return of_v, of_hat, of_s, of_t


def scale_slopes(v: Tensor, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """v·w, Σ v·x and Σ v."""
    v, x, w = (each.contiguous() for each in (v, x, w))
    of_x, of_w, of_b = torch.empty_like(x), torch.empty_like(w), torch.empty_like(w)
    _launch(_scale_slopes, v, v, x, w, of_x, of_w, of_b)
    return of_x, of_w, of_b


def slopes_of_scale_slopes(
    c: Tensor, c_w: Tensor, c_b: Tensor, v: Tensor, x: Tensor, w: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """What slopes of the three results of `scale_slopes` make of v, x and w."""
    c, c_w, c_b, v, x, w = (each.contiguous() for each in (c, c_w, c_b, v, x, w))
    of_v, of_x, of_w = torch.empty_like(v), torch.empty_like(x), torch.empty_like(w)
    _launch(_slopes_of_scale_slopes, v, c, c_w, c_b, v, x, w, of_v, of_x, of_w)
    return of_v, of_x, of_w


def _column(x: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], 1, dtype=torch.float32)


def _launch(kernel: triton.JITFunction, like: Tensor, *arguments: Tensor | float) -> None:
    n = like.shape[-1]
    rows = like.numel() // n
    width = triton.next_power_of_2(n)
    at_once = max(512 // width, 1)
    warps = min(max(width * at_once // 512, 1), 8)
    with torch.cuda.device(like.device):
        kernel[(triton.cdiv(rows, at_once),)](*arguments, rows, n, ROWS=at_once, WIDTH=width, num_warps=warps)


@triton.jit
def _place(rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    return row, row < rows, row * n + column, (row < rows) & (column < n)


@triton.jit
def _read(at, place, inside):
    return tl.load(at + place, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _sum(x):
    return tl.sum(x, axis=1, keep_dims=True)


@triton.jit
def _standardise(x, hat, s, eps, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, exists, place, inside = _place(rows, n, ROWS, WIDTH)
    value = _read(x, place, inside)
    away = tl.where(inside, value - _sum(value) / n, 0.0)
    scale = 1.0 / tl.sqrt(_sum(away * away) / n + eps)
    tl.store(hat + place, away * scale, mask=inside)
    tl.store(s + row, scale, mask=exists)


@triton.jit
def _slope(v, hat, s, t, out, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, exists, place, inside = _place(rows, n, ROWS, WIDTH)
    value, unit = _read(v, place, inside), _read(hat, place, inside)
    scale, of_scale = _read(s, row, exists), _read(t, row, exists)
    tilt = scale * _sum(value * unit) / n + of_scale * scale * scale / n
    tl.store(out + place, (value - _sum(value) / n) * scale - unit * tilt, mask=inside)


@triton.jit
def _slopes_of_slope(
    c, v, hat, s, t, of_v, of_hat, of_s, of_t, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    row, exists, place, inside = _place(rows, n, ROWS, WIDTH)
    cot, value, unit = _read(c, place, inside), _read(v, place, inside), _read(hat, place, inside)
    scale, of_scale = _read(s, row, exists), _read(t, row, exists)
    mean_c, mean_v = _sum(cot) / n, _sum(value) / n
    c_hat, v_hat, c_v = _sum(cot * unit) / n, _sum(value * unit) / n, _sum(cot * value) / n
    tl.store(of_v + place, (cot - mean_c - unit * c_hat) * scale, mask=inside)
    tilt = scale * v_hat + of_scale * scale * scale / n
    tl.store(of_hat + place, -cot * tilt - value * (scale * c_hat), mask=inside)
    spread = n * (c_v - mean_c * mean_v - c_hat * v_hat)
    tl.store(of_s + row, spread - 2 * of_scale * scale * c_hat, mask=exists)
    tl.store(of_t + row, -scale * scale * c_hat, mask=exists)


@triton.jit
def _scale_slopes(v, x, w, of_x, of_w, of_b, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, exists, place, inside = _place(rows, n, ROWS, WIDTH)
    value, given = _read(v, place, inside), _read(x, place, inside)
    tl.store(of_x + place, value * _read(w, row, exists), mask=inside)
    tl.store(of_w + row, _sum(value * given), mask=exists)
    tl.store(of_b + row, _sum(value), mask=exists)


@triton.jit
def _slopes_of_scale_slopes(
    c, c_w, c_b, v, x, w, of_v, of_x, of_w, rows, n, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    row, exists, place, inside = _place(rows, n, ROWS, WIDTH)
    cot, value, given = _read(c, place, inside), _read(v, place, inside), _read(x, place, inside)
    tilt = _read(c_w, row, exists)
    along = cot * _read(w, row, exists) + given * tilt + _read(c_b, row, exists)
    tl.store(of_v + place, along, mask=inside)
    tl.store(of_x + place, value * tilt, mask=inside)
    tl.store(of_w + row, _sum(cot * value), mask=exists)
