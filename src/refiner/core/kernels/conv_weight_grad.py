"""The gradient of every victim's own convolution weight, without a copy of the pixels that each output sees.

A matrix product with few rows fills only a part of the tiles that libraries use, and needs each input pixel
copied once for every output that sees it. Here pixels are gathered as they are multiplied: for ten LeNet
clients × 128, 63 to 75 instead of 164 to 182 µs a layer on an H200. The plain twin is `core.convolution`'s
product over columns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from refiner.core.kernels import launch_device

Pair = tuple[int, int]
_SAMPLES, _PIXELS, _COLUMNS = 4, 32, 32


def conv_weight_grad(
    x: Tensor, y: Tensor, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair, exact: bool
) -> Tensor:
    """Weight gradients `[V, O, C, h, w]` for inputs `x [V, B, C, H, W]`, cotangents `y [V, B, O, H', W']`.

    V is 1 for a tensor that all victims share. With `exact`, float32 products are made of three TF32
    products, which is as accurate as a library's float32; otherwise of one.
    """
    x, y = x.contiguous(), y.contiguous()
    victims, (samples, channels, *image), (rows, *output) = max(len(x), len(y)), x.shape[1:], y.shape[2:]
    groups = triton.cdiv(samples, _SAMPLES)
    columns = channels * kernel[0] * kernel[1]
    # One sum for each group of samples: atomic additions would come in another order in every run.
    out = x.new_empty(groups, victims, rows, columns, dtype=torch.float32)
    sizes = (channels, *image, rows, *output, *kernel, *dilation, *padding, *stride)
    tiles = (_SAMPLES, _PIXELS, _COLUMNS, max(16, triton.next_power_of_2(rows)))
    precision = "tf32x3" if exact else "tf32"
    with launch_device(x):
        if x.is_cuda and (torch.version.hip is not None or torch.cuda.get_device_capability() < (8, 0)):
            precision = "ieee"  # a GPU without TF32
        _conv_weight_grad[(triton.cdiv(columns, _COLUMNS), groups, victims)](
            x, y, out, victims, samples, len(x) > 1, len(y) > 1, *sizes, *tiles, precision, num_warps=2
        )
    return out.sum(0).view(victims, rows, channels, *kernel).to(x.dtype)


@triton.jit
def _conv_weight_grad(
    x,
    y,
    out,
    victims,
    samples,
    X_PER_VICTIM: tl.constexpr,
    Y_PER_VICTIM: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    ROWS: tl.constexpr,
    OUT_H: tl.constexpr,
    OUT_W: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    DH: tl.constexpr,
    DW: tl.constexpr,
    PH: tl.constexpr,
    PW: tl.constexpr,
    SH: tl.constexpr,
    SW: tl.constexpr,
    SAMPLES: tl.constexpr,
    PIXELS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PADDED_ROWS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    group, victim = tl.program_id(1), tl.program_id(2).to(tl.int64)
    column, row = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, PADDED_ROWS)
    out_valid = (row < ROWS)[:, None] & (column < C * KH * KW)[None, :]
    total = tl.zeros((PADDED_ROWS, COLUMNS), tl.float32)
    for begin in range(0, OUT_H * OUT_W, PIXELS):
        pixel = begin + tl.arange(0, PIXELS)
        inside = pixel < OUT_H * OUT_W
        # The input pixel under the kernel's entry `column` when the kernel is placed for output `pixel`.
        in_row = (pixel // OUT_W * SH - PH)[:, None] + (column // KW % KH * DH)[None, :]
        in_column = (pixel % OUT_W * SW - PW)[:, None] + (column % KW * DW)[None, :]
        x_valid = (in_row >= 0) & (in_row < H) & (in_column >= 0) & (in_column < W)
        x_valid &= inside[:, None] & (column < C * KH * KW)[None, :]
        x_offset = (column // (KH * KW) * (H * W))[None, :] + in_row * W + in_column
        y_offset = row[:, None] * (OUT_H * OUT_W) + pixel[None, :]
        y_valid = (row < ROWS)[:, None] & inside[None, :]
        for sample in range(group * SAMPLES, tl.minimum((group + 1) * SAMPLES, samples)):
            x_sample = (victim * samples if X_PER_VICTIM else 0) + sample
            y_sample = (victim * samples if Y_PER_VICTIM else 0) + sample
            y_tile = tl.load(y + y_sample * (ROWS * OUT_H * OUT_W) + y_offset, mask=y_valid, other=0.0)
            x_tile = tl.load(x + x_sample * (C * H * W) + x_offset, mask=x_valid, other=0.0)
            total = tl.dot(y_tile, x_tile, total, input_precision=PRECISION)
    start = (group * victims + victim) * (ROWS * C * KH * KW)
    tl.store(out + start + row[:, None] * (C * KH * KW) + column[None, :], total, mask=out_valid)
