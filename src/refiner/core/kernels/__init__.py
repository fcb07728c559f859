"""Kernels of our own for the GPU, where PyTorch's take many passes over memory; each has a plain twin."""

import functools
import importlib.util

import torch
from torch import Tensor


def usable(*tensors: Tensor) -> bool:
    """Whether kernels can take these tensors: on a GPU, and no derivative of the call is recorded.

    >>> usable(torch.ones(2))
    False
    """
    if not tensors[0].is_cuda or tensors[0].dtype == torch.float64 or not _triton():
        return False
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    # Under a transform such as `vmap` a tensor has no memory of its own.
    return not recorded and not any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors)


@functools.cache
def _triton() -> bool:
    """PyTorch comes without Triton on some platforms."""
    return importlib.util.find_spec("triton") is not None
