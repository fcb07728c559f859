"""The ε-projection of the appendix: no upload is further than ε from the real gradient."""

import torch
from torch import Tensor


def project(robust: Tensor, real: Tensor, radius: float | Tensor) -> Tensor:
    """The point nearest to `robust [V, N]` within `radius` of `real [V, N]`.

    >>> real, robust = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    >>> project(robust, real, 1.0)
    tensor([[0.6000, 0.8000]])
    >>> project(robust, real, 9.0)
    tensor([[3., 4.]])
    """
    difference = robust - real
    distance = difference.norm(dim=1)
    shrink = radius / distance.clamp_min(torch.finfo(real.dtype).tiny)
    # Inside the ball the robust gradient itself is uploaded, bit for bit.
    return torch.where((distance > radius)[:, None], real + shrink[:, None] * difference, robust)
