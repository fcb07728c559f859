"""The privacy metric PM: the share of noise that the evaluation network sees in robust data (Section 3.3)."""

import torch
from torch import Tensor

from refiner.evaluation.network import EvaluationNetwork


def noise_share(network: EvaluationNetwork, x: Tensor, low: float, high: float) -> Tensor:
    """PM of every victim, `[V]`: the mean of D over its batch `x [V, B, C, H, W]` with values in low..high."""
    pictures = x if (low, high) == (0.0, 1.0) else (x - low) / (high - low)
    # D moves by less than 0.01 in bfloat16; the gradient that leaves is never computed so.
    with torch.autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
        return network(pictures).mean(1).to(x.dtype)
