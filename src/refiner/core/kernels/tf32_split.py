"""The two parts of numbers that TF32 can hold, in one pass."""

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024


def parts(t: Tensor) -> tuple[Tensor, Tensor]:
    """`[N, …]` → the rounded values `[N, …]`, and `[N, 2, …]` of these and what rounding left."""
    t = t.contiguous()
    rounded, both = torch.empty_like(t), t.new_empty(len(t), 2, *t.shape[1:])
    inner = t[0].numel()
    with torch.cuda.device(t.device):
        _parts[(len(t), triton.cdiv(inner, _BLOCK))](t, rounded, both, inner, _BLOCK)
    return rounded, both


@triton.jit
def _parts(given, rounded, both, inner, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = place < inner
    value = tl.load(given + row * inner + place, mask=inside, other=0.0)
    bits = (value.to(tl.int32, bitcast=True) + 0x1000) & -0x2000
    near = bits.to(tl.float32, bitcast=True)
    tl.store(rounded + row * inner + place, near, mask=inside)
    first = both + row * 2 * inner + place
    tl.store(first, near, mask=inside)
    tl.store(first + inner, value - near, mask=inside)
