"""An estimate of the inverse Hessian from the latest steps of a search, for all victims at once."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from refiner.core.precision import tensor_float32
from refiner.defenses.refine.objective import expand_like
from refiner.defenses.refine.utility import TINY


class InverseHessian:
    """L-BFGS in its compact form (Byrd, Nocedal and Schnabel 1994).

    It gives the same product as the usual two loops over the past steps, with three passes over them instead
    of one reduction and one update for each. A step without positive curvature, such as one of length zero,
    has no effect.

    Args:
        scale: The inverse Hessian before the first step, a multiple of the identity, `[V]`.
        like: A point `[V, B, ...]`.
        length: How many steps are kept, 1 or more.
    """

    def __init__(self, scale: Tensor, like: Tensor, length: int) -> None:
        victims, samples = like.shape[:2]
        self._scale, self._length, self._count = scale, length, 0
        # Steps and changes of the gradient over them, ring buffers.
        self._steps, self._changes = like.new_zeros(2, victims, samples, length, like[0, 0].numel()).unbind()
        # From the oldest to the newest: step·change, the inverse of the upper triangle of the products
        # step·change, and all products change·change.
        self._curvatures = like.new_zeros(victims, 0)
        self._inverse = self._squares = like.new_zeros(victims, 0, 0)

    def add(self, step: Tensor, change: Tensor) -> None:
        """Learn from a step `[V, B, ...]` and the change of the gradient over it."""
        curvature, squared = _dot(step, change), _dot(change, change)
        useful = curvature > 1e-10 * squared
        self._scale = torch.where(useful, curvature / squared.clamp_min(TINY), self._scale)
        where, slot = expand_like(useful, step), self._count % self._length
        change = torch.where(where, change, 0)
        self._steps[:, :, slot] = torch.where(where, step, 0).flatten(2)
        self._changes[:, :, slot] = change.flatten(2)
        if self._count >= self._length:
            self._curvatures, self._inverse = self._curvatures[:, 1:], self._inverse[:, 1:, 1:]
            self._squares = self._squares[:, 1:, 1:]
        self._count += 1
        with tensor_float32(False):
            along_steps, squares = self._dots(self._steps, change), self._dots(self._changes, change)
            column = -torch.einsum("vij,vj->vi", self._inverse, along_steps[:, :-1])
        pivot = torch.where(useful, 1 / curvature.clamp_min(TINY), 1)[:, None]
        self._inverse = pad(self._inverse, (0, 1, 0, 1))
        self._inverse[:, :, -1] = torch.cat([column * pivot, pivot], dim=1)
        self._squares = pad(self._squares, (0, 1, 0, 1))
        self._squares[:, :, -1] = self._squares[:, -1] = squares
        self._curvatures = torch.cat([self._curvatures, torch.where(useful, curvature, 0)[:, None]], dim=1)

    def __matmul__(self, gradient: Tensor) -> Tensor:
        """The estimate times a gradient `[V, B, ...]`."""
        product = expand_like(self._scale, gradient) * gradient
        if not self._count:
            return product
        scale = self._scale[:, None]
        with tensor_float32(False):
            along_steps, along_changes = (
                self._dots(self._steps, gradient),
                self._dots(self._changes, gradient),
            )
            p = torch.einsum("vij,vj->vi", self._inverse, along_steps)
            of_changes = torch.einsum("vij,vj->vi", self._squares, p) - along_changes
            of_steps = torch.einsum("vji,vj->vi", self._inverse, self._curvatures * p + scale * of_changes)
            correction = self._sum(self._steps, of_steps) - self._sum(self._changes, scale * p)
        return product + correction.view_as(gradient)

    def _dots(self, vectors: Tensor, point: Tensor) -> Tensor:
        """The products with `point [V, B, ...]`, from the oldest vector to the newest."""
        kept = vectors[:, :, : self._count]
        return (kept @ point.flatten(2)[..., None]).sum((1, 3)).roll(-self._oldest, 1)

    def _sum(self, vectors: Tensor, weights: Tensor) -> Tensor:
        """The sum of the vectors with these weights, from the oldest to the newest."""
        row = weights.roll(self._oldest, 1)[:, None, None]
        return row.expand(-1, vectors.shape[1], -1, -1) @ vectors[:, :, : self._count]

    @property
    def _oldest(self) -> int:
        return self._count % self._length if self._count > self._length else 0


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)
