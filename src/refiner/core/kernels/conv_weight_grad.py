"""The slopes of every victim's own convolution kernel, without a copy of what each output pixel sees.

A matrix product of a few rows fills a part of the tiles that libraries have for it, and first needs each
pixel written out as often as outputs see it. Here pixels are gathered as they are multiplied.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

Pair = tuple[int, int]
_SAMPLES, _PIXELS, _COLUMNS = 4, 32, 32


def weights(
    x: Tensor, y: Tensor, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair, exact: bool
) -> Tensor:
    """From `x [V, B, C, H, W]` and slopes `y [V, B, O, H', W']`, `[V, O, C, h, w]`; V is 1 for a shared one.

    `exact`: float32 made of three products in TF32, as near as a library's own float32; otherwise of one.
    """
    x, y = x.contiguous(), y.contiguous()
    victims, (samples, channels, *image), (rows, *result) = max(len(x), len(y)), x.shape[1:], y.shape[2:]
    parts = triton.cdiv(samples, _SAMPLES)
    columns = channels * kernel[0] * kernel[1]
    # Each part of a batch adds up its own: sums in an order that chance makes would differ from run to run.
    out = x.new_empty(parts, victims, rows, columns, dtype=torch.float32)
    sizes = (channels, *image, rows, *result, *kernel, *dilation, *padding, *stride)
    tiles = (_SAMPLES, _PIXELS, _COLUMNS, max(16, triton.next_power_of_2(rows)))
    with torch.cuda.device(x.device):
        without = torch.version.hip is not None or torch.cuda.get_device_capability() < (8, 0)  # TF32
        way = "ieee" if without else "tf32x3" if exact else "tf32"
        _weights[(triton.cdiv(columns, _COLUMNS), parts, victims)](
            x, y, out, victims, samples, len(x) > 1, len(y) > 1, *sizes, *tiles, way, num_warps=2
        )
    return out.sum(0).view(victims, rows, channels, *kernel).to(x.dtype)


@triton.jit
def _weights(
    x,
    y,
    out,
    victims,
    samples,
    X_OWN: tl.constexpr,
    Y_OWN: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    ROWS: tl.constexpr,
    HIGH: tl.constexpr,
    WIDE: tl.constexpr,
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
    PADDED: tl.constexpr,
    WAY: tl.constexpr,
):
    part, victim = tl.program_id(1), tl.program_id(2).to(tl.int64)
    column, row = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS), tl.arange(0, PADDED)
    held = (row < ROWS)[:, None] & (column < C * KH * KW)[None, :]
    total = tl.zeros((PADDED, COLUMNS), tl.float32)
    for begin in range(0, HIGH * WIDE, PIXELS):
        pixel = begin + tl.arange(0, PIXELS)
        inside = pixel < HIGH * WIDE
        # What the kernel's entry `column` sees of the image as it lies over output `pixel`.
        high = (pixel // WIDE * SH - PH)[:, None] + (column // KW % KH * DH)[None, :]
        wide = (pixel % WIDE * SW - PW)[:, None] + (column % KW * DW)[None, :]
        seen = (high >= 0) & (high < H) & (wide >= 0) & (wide < W)
        seen &= inside[:, None] & (column < C * KH * KW)[None, :]
        place = (column // (KH * KW) * (H * W))[None, :] + high * W + wide
        slope = row[:, None] * (HIGH * WIDE) + pixel[None, :]
        met = (row < ROWS)[:, None] & inside[None, :]
        for sample in range(part * SAMPLES, tl.minimum((part + 1) * SAMPLES, samples)):
            of_x = (victim * samples if X_OWN else 0) + sample
            of_y = (victim * samples if Y_OWN else 0) + sample
            above = tl.load(y + of_y * (ROWS * HIGH * WIDE) + slope, mask=met, other=0.0)
            below = tl.load(x + of_x * (C * H * W) + place, mask=seen, other=0.0)
            total = tl.dot(above, below, total, input_precision=WAY)
    start = (part * victims + victim) * (ROWS * C * KH * KW)
    tl.store(out + start + row[:, None] * (C * KH * KW) + column[None, :], total, mask=held)
