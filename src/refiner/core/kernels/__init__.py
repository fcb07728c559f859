"""Triton kernels for the GPU; each has a plain PyTorch twin that computes the same.

PyTorch needs many passes over memory for these, with a launch and a temporary tensor for each; a kernel reads
its inputs once and writes its outputs once. `REFINER_KERNELS=0` in the environment turns all of them off.
"""

import functools
import importlib.util
import os
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from refiner.errors import SettingError

SWITCH = "REFINER_KERNELS"
"""The environment variable that turns the kernels off (0) or on (1, the default); read once."""


def kernels_available(*tensors: Tensor) -> bool:
    """Whether the kernels can run on these tensors: on a GPU, in float32 or less, outside of autograd.

    Raises:
        SettingError: `REFINER_KERNELS` is set to something other than 0 or 1.

    >>> kernels_available(torch.ones(2))
    False
    """
    if (
        not _enabled()
        or not tensors[0].is_cuda
        or tensors[0].dtype == torch.float64
        or not _triton_installed()
    ):
        return False
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    # Under a transform such as `vmap` a tensor has no memory of its own.
    return not recorded and not any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors)


def launch_device(tensor: Tensor) -> AbstractContextManager[object]:
    """A context in which kernels run on the tensor's GPU; a CPU, with Triton's interpreter, needs none."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


@functools.cache
def _enabled() -> bool:
    value = os.environ.get(SWITCH, "1")
    if value not in ("0", "1"):
        raise SettingError(field=SWITCH, value=value, expected="0 (kernels off) or 1 (on, the default)")
    return value == "1"


@functools.cache
def _triton_installed() -> bool:
    """Whether Triton is there: PyTorch comes without it on some platforms."""
    return importlib.util.find_spec("triton") is not None
