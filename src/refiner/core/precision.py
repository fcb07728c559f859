"""The float32 precision of the GPU: full for what a client uploads, TF32 where rounding does no harm.

Float32 products can also be made of TF32 ones, on the faster tensor cores: each number is a rounded value and
a remainder, both of which TF32 can hold, and a·b is the product of the rounded values plus two small
products. The small ones are summed separately: tensor cores truncate as they sum, and one long sum of all
three would lose a digit.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from refiner.core.kernels import kernels_available


@contextmanager
def tensor_float32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in convolutions and matrix products inside the block; no effect on a CPU."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def split_tf32(t: Tensor) -> tuple[Tensor, Tensor]:
    """The values `[N, …]` rounded to TF32, and `[N, 2, …]` of the rounded values and the remainders.

    >>> rounded, both = split_tf32(torch.tensor([1 / 3]))
    >>> bool(rounded[0] == both[0, 0]), bool(both.sum() == torch.tensor(1 / 3))
    (True, True)
    """
    if kernels_available(t):
        from refiner.core.kernels import tf32_split

        return tf32_split.split_tf32(t)
    rounded = _round_to_tf32(t)
    return rounded, torch.stack([rounded, t - rounded], dim=1)


def _round_to_tf32(t: Tensor) -> Tensor:
    """Float32 rounded to the nearest number with the ten mantissa bits of TF32."""
    return ((t.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
