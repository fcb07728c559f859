"""Which float32 the GPU computes with: full for what leaves a client, TF32 where it only steers a search."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tensor_float32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in convolutions and matrix products inside the block; nothing happens on a CPU."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
