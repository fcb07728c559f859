"""The privacy metric PM: the share of noise that the evaluation network sees in robust data (Section 3.3).

MSE in its place is the paper's ablation: it grows with any change of pixels, seen or not.
"""

import copy
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from refiner.evaluation.network import EvaluationNetwork

PRIVACIES = ("network", "mse")

# Each lives as long as its network: a recorded CUDA graph reads it where it lies.
_QUICK: WeakKeyDictionary[EvaluationNetwork, EvaluationNetwork] = WeakKeyDictionary()


def noise_share(network: EvaluationNetwork, x: Tensor, low: float, high: float) -> Tensor:
    """PM of every victim, `[V]`: the mean of D over its batch `x [V, B, C, H, W]` of values in low..high."""
    images = x if (low, high) == (0.0, 1.0) else (x - low) / (high - low)
    if not x.is_cuda:
        plain: Tensor = network(images.to(network.linear.weight.dtype))
        return plain.mean(1).to(x.dtype)
    # D moves by less than 0.01 in bfloat16; the gradient that leaves is never computed so.
    flat = images.flatten(0, 1).to(torch.bfloat16, memory_format=torch.channels_last)
    quick: Tensor = _quick(network)(flat)
    return quick.view(x.shape[:2]).mean(1).to(x.dtype)


def squared_error(x: Tensor, real: Tensor, low: float, high: float) -> Tensor:
    """MSE of robust to real data of every victim, `[V]`, in units of the input range.

    >>> squared_error(torch.ones(1, 1, 2), torch.zeros(1, 1, 2), 0.0, 2.0)
    tensor([0.2500])
    """
    return ((x - real) / (high - low)).square().flatten(1).mean(1)


def _quick(network: EvaluationNetwork) -> EvaluationNetwork:
    """A copy whose convolutions are in bfloat16, channels last: the GPU's fast way."""
    if network in _QUICK:
        return _QUICK[network]
    quick = _QUICK[network] = copy.deepcopy(network)
    for layer in (quick.conv1, quick.conv2, quick.conv3):
        layer.to(torch.bfloat16, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return quick
