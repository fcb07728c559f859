"""The privacy metric PM: the noise ratio that the evaluation network predicts for robust data (Section 3.3).

MSE in its place is the paper's ablation: it grows with any change of pixels, visible or not.
"""

import copy
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from refiner.evaluation.network import EvaluationNetwork

PRIVACY_METRICS = ("network", "mse")

# A copy lives as long as its network: recorded CUDA graphs read its weights in place.
_BFLOAT16_COPIES: WeakKeyDictionary[EvaluationNetwork, EvaluationNetwork] = WeakKeyDictionary()


def noise_ratio(network: EvaluationNetwork, x: Tensor, low: float, high: float) -> Tensor:
    """PM of every victim, `[V]`: the mean of D over its batch `x [V, B, C, H, W]` of values in low..high."""
    images = x if (low, high) == (0.0, 1.0) else (x - low) / (high - low)
    if not x.is_cuda:
        ratios: Tensor = network(images.to(network.linear.weight.dtype))
        return ratios.mean(1).to(x.dtype)
    # bfloat16 changes D by less than 0.01; the uploaded gradient is never computed in it.
    flat = images.flatten(0, 1).to(torch.bfloat16, memory_format=torch.channels_last)
    flat_ratios: Tensor = _bfloat16_copy(network)(flat)
    return flat_ratios.view(x.shape[:2]).mean(1).to(x.dtype)


def squared_error(x: Tensor, real: Tensor, low: float, high: float) -> Tensor:
    """MSE between robust and real data of every victim, `[V]`, in units of the input range.

    >>> squared_error(torch.ones(1, 1, 2), torch.zeros(1, 1, 2), 0.0, 2.0)
    tensor([0.2500])
    """
    return ((x - real) / (high - low)).square().flatten(1).mean(1)


def _bfloat16_copy(network: EvaluationNetwork) -> EvaluationNetwork:
    """A copy with convolutions in bfloat16 and channels-last layout, the fastest form on a GPU."""
    if network in _BFLOAT16_COPIES:
        return _BFLOAT16_COPIES[network]
    converted = _BFLOAT16_COPIES[network] = copy.deepcopy(network)
    for layer in (converted.conv1, converted.conv2, converted.conv3):
        layer.to(torch.bfloat16, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return converted
