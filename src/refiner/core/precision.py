"""Which float32 the GPU computes with: full for what leaves a client, TF32 where it only steers a search.

Full float32 can also be had from TF32, on the faster tensor cores: with every number as a rounded value and a
rest, both of which TF32 can hold, a·b is three products, and what they leave out is beyond float32's digits.
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


def parted(t: Tensor) -> Tensor:
    """Rounded value, rounded value, rest: `[N, …]` → `[N, 3, …]`.

    >>> both = parted(torch.tensor([[1 / 3]])) * mirrored(torch.tensor([[3.0]]))
    >>> float(both.sum())
    1.0
    """
    if usable(t):
        from refiner.core.kernels.thrice import thrice

        return thrice(t)
    rounded = _rounded(t)
    return torch.stack([rounded, rounded, t - rounded], dim=1)


def mirrored(t: Tensor) -> Tensor:
    """The other factor's parts, each in the place of what it is multiplied with: rounded, rest, rounded."""
    rounded = _rounded(t)
    return torch.stack([rounded, t - rounded, rounded], dim=1)


def _rounded(t: Tensor) -> Tensor:
    """Float32 to TF32's ten bits of a fraction, the nearest."""
    return ((t.contiguous().view(torch.int32) + 0x1000) & -0x2000).view(torch.float32)
