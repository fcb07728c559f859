"""The parts of numbers that TF32 can hold, written three times over in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def thrice(t: Tensor) -> Tensor:
    """`[N, …]` → `[N, 3, …]` of the rounded value, the rounded value, and what rounding left."""
    t = t.contiguous()
    out = t.new_empty(len(t), 3, *t.shape[1:])
    inner = t[0].numel()
    with torch.cuda.device(t.device):
        _thrice[(len(t), triton.cdiv(inner, _BLOCK))](t, out, inner, _BLOCK)
    return out


@triton.jit
def _thrice(given, out, inner, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < inner
    value = tl.load(given + row * inner + place, mask=inside, other=0.0)
    bits = (value.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    rounded = bits.to(tl.float32, bitcast=True)
    first = out + row * 3 * inner + place
    tl.store(first, rounded, mask=inside)
    tl.store(first + inner, rounded, mask=inside)
    tl.store(first + 2 * inner, value - rounded, mask=inside)
