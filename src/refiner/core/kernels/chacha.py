"""ChaCha in one pass, a block's sixteen words in registers; the plain twin is in `core.noise`.

Why our own: PyTorch has no ChaCha, and in tensor operations every one of its additions, exclusive ors and
rotations is a pass over memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from refiner.core.kernels import launch_device

_BLOCK = 128


def chacha(key: Tensor, ids: Tensor, blocks: int, rounds: int) -> Tensor:
    """Blocks of 16 words for each id, `[N, 16 · blocks]`; `key` holds ChaCha's constants and the key."""
    ids = ids.contiguous()
    out = torch.empty(len(ids), 16 * blocks, dtype=torch.int32, device=ids.device)
    programs_per_row = triton.cdiv(blocks, _BLOCK)
    if len(ids) and blocks:
        with launch_device(ids):
            _chacha[(len(ids) * programs_per_row,)](
                key, ids, out, blocks, programs_per_row, rounds // 2, _BLOCK
            )
    return out


@triton.jit
def _word(key, index: tl.constexpr, BLOCK: tl.constexpr):
    return tl.zeros([BLOCK], tl.uint32) + tl.load(key + index).to(tl.uint32, bitcast=True)


@triton.jit
def _quarter_round(a, b, c, d):
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _store_word(out, value, initial, inside):
    tl.store(out, (value + initial).to(tl.int32, bitcast=True), mask=inside)


@triton.jit
def _chacha(key, ids, out, blocks, programs_per_row, double_rounds: tl.constexpr, BLOCK: tl.constexpr):
    row = (tl.program_id(0) // programs_per_row).to(tl.int64)
    block = (tl.program_id(0) % programs_per_row) * BLOCK + tl.arange(0, BLOCK)
    inside = block < blocks
    zero = tl.zeros([BLOCK], tl.uint32)
    sample_id = tl.load(ids + row).to(tl.uint64, bitcast=True)
    k0, k1, k2, k3 = _word(key, 0, BLOCK), _word(key, 1, BLOCK), _word(key, 2, BLOCK), _word(key, 3, BLOCK)
    k4, k5, k6, k7 = _word(key, 4, BLOCK), _word(key, 5, BLOCK), _word(key, 6, BLOCK), _word(key, 7, BLOCK)
    k8, k9, ka, kb = _word(key, 8, BLOCK), _word(key, 9, BLOCK), _word(key, 10, BLOCK), _word(key, 11, BLOCK)
    kc, kd = block.to(tl.uint32), zero
    ke, kf = zero + sample_id.to(tl.uint32), zero + (sample_id >> 32).to(tl.uint32)
    a0, a1, a2, a3, b0, b1, b2, b3 = k0, k1, k2, k3, k4, k5, k6, k7
    c0, c1, c2, c3, d0, d1, d2, d3 = k8, k9, ka, kb, kc, kd, ke, kf
    for _ in tl.static_range(double_rounds):
        a0, b0, c0, d0 = _quarter_round(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter_round(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter_round(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter_round(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter_round(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter_round(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter_round(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter_round(a3, b0, c1, d2)
    first = out + (row * blocks + block) * 16
    _store_word(first + 0, a0, k0, inside)
    _store_word(first + 1, a1, k1, inside)
    _store_word(first + 2, a2, k2, inside)
    _store_word(first + 3, a3, k3, inside)
    _store_word(first + 4, b0, k4, inside)
    _store_word(first + 5, b1, k5, inside)
    _store_word(first + 6, b2, k6, inside)
    _store_word(first + 7, b3, k7, inside)
    _store_word(first + 8, c0, k8, inside)
    _store_word(first + 9, c1, k9, inside)
    _store_word(first + 10, c2, ka, inside)
    _store_word(first + 11, c3, kb, inside)
    _store_word(first + 12, d0, kc, inside)
    _store_word(first + 13, d1, kd, inside)
    _store_word(first + 14, d2, ke, inside)
    _store_word(first + 15, d3, kf, inside)
