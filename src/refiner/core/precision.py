"""Which float32 the GPU computes with: all of it for what leaves a client, TF32 where it only steers.

Float32 can also be had from TF32, on the faster tensor cores: with each number as a rounded value and a rest,
both of which TF32 can hold, a·b is a rounded product and two small ones. The small ones are added up apart:
tensor cores cut what they add up, and a long sum of the three together would lose a digit.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from refiner.core.kernels import usable


@contextmanager
def tensor_float32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in convolutions and matrix products inside the block; nothing happens on a CPU."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def parts(t: Tensor) -> tuple[Tensor, Tensor]:
    """Rounded values `[N, …]`, and `[N, 2, …]` of these and the rest.

    >>> rounded, both = parts(torch.tensor([1 / 3]))
    >>> bool(rounded[0] == both[0, 0]), bool(both.sum() == torch.tensor(1 / 3))
    (True, True)
    """
    if usable(t):
        from refiner.core.kernels.tf32_split import parts as in_one_pass

        return in_one_pass(t)
    rounded = _rounded(t)
    return rounded, torch.stack([rounded, t - rounded], dim=1)


def _rounded(t: Tensor) -> Tensor:
    """Float32 to TF32's ten bits of a fraction, the nearest."""
    return ((t.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
