"""Float32 as the sum of two TF32 numbers, in one pass; the plain twin is `core.precision.split_tf32`.

Why our own: PyTorch has no rounding to TF32, and composed of its operations this takes a pass for each.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from refiner.core.kernels import launch_device

_BLOCK = 1024


def split_tf32(t: Tensor) -> tuple[Tensor, Tensor]:
    """The values `[N, …]` rounded to TF32, and `[N, 2, …]` of the rounded values and the remainders."""
    t = t.contiguous()
    rounded, both = torch.empty_like(t), t.new_empty(len(t), 2, *t.shape[1:])
    inner = t[0].numel()
    with launch_device(t):
        _split[(len(t), triton.cdiv(inner, _BLOCK))](t, rounded, both, inner, _BLOCK)
    return rounded, both


@triton.jit
def _split(values, rounded, both, inner, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    offset = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < inner
    value = tl.load(values + row * inner + offset, mask=inside, other=0.0)
    bits = (value.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    nearest = bits.to(tl.float32, bitcast=True)
    tl.store(rounded + row * inner + offset, nearest, mask=inside)
    first = both + row * 2 * inner + offset
    tl.store(first, nearest, mask=inside)
    tl.store(first + inner, value - nearest, mask=inside)
