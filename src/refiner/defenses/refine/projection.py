"""How far an upload is from the real gradient: at most ε (appendix, projection), at least the floor."""

from collections.abc import Callable

import torch
from torch import Tensor


def project(robust: Tensor, real: Tensor, most: float | Tensor) -> Tensor:
    """The point nearest to `robust [V, N]` that is no further than `most` from `real [V, N]`.

    >>> real, robust = torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])
    >>> project(robust, real, 1.0)
    tensor([[0.6000, 0.8000]])
    >>> project(robust, real, 9.0)
    tensor([[3., 4.]])
    """
    return _scaled(robust, real, most, lambda length: length > most)


def repel(robust: Tensor, real: Tensor, least: Tensor) -> Tensor:
    """The point nearest to `robust [V, N]` that is no nearer than `least [V]` to `real [V, N]`.

    >>> repel(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2), torch.tensor([10.0]))
    tensor([[6., 8.]])
    """
    # Where both are equal there is no direction to go in, and nothing is hidden.
    return _scaled(robust, real, least, lambda length: (length < least) & (length > 0))


def _scaled(
    robust: Tensor, real: Tensor, length: float | Tensor, where: Callable[[Tensor], Tensor]
) -> Tensor:
    difference = robust - real
    found = difference.norm(dim=1)
    factor = length / found.clamp_min(torch.finfo(real.dtype).tiny)
    # Elsewhere the robust gradient itself leaves, to the last bit.
    return torch.where(where(found)[:, None], real + factor[:, None] * difference, robust)
