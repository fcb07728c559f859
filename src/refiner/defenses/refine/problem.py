"""Equation 2 for a batch of victims: the objective UM − β·PM, with the gradient expanded about a point."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from refiner.core.capture import beside
from refiner.defenses.refine.utility import TINY, Utility

Gradient = Callable[[Tensor], Tensor]
"""Data `[V, B, ...]` → gradients `[V, N]`; differentiable where its argument asks for it."""


@dataclass(frozen=True)
class Expansion:
    """The gradient near one point, g + J·(x − point), without ever holding J."""

    gradient: Gradient
    point: Tensor
    probe: float
    """How far a finite difference moves a pixel."""

    @cached_property
    def value(self) -> Tensor:
        """g at the point, with its graph: each `pull` is a walk back through the same one."""
        with torch.enable_grad():
            return self.gradient(self.point.requires_grad_())

    def pull(self, weights: Tensor) -> Tensor:
        """Jᵀ·weights for `weights [V, N]`."""
        (slope,) = torch.autograd.grad(self.value, self.point, grad_outputs=weights, retain_graph=True)
        return slope

    def push(self, move: Tensor, tallest: Tensor) -> Tensor:
        """J·move, where no pixel moves by more than `tallest [V]`.

        A finite difference is half the cost of the exact product, and it only steers a search.
        """
        scale = self.probe / tallest
        with torch.no_grad():
            return (self.gradient(self.point + wide(scale, move) * move) - self.value) / scale[:, None]


@dataclass(frozen=True)
class Problem:
    """One batch of victims and the two metrics."""

    gradient: Gradient
    utility: Utility
    privacy: Callable[[Tensor], Tensor]
    beta: float
    floor: float
    """Relative gradient distance below which the match has no say: nearer shows the picture."""
    probe: float
    real: Tensor | None = None
    """The real data, if what is uploaded is the gradient's expansion about them ("straight")."""

    def expand(self, x: Tensor) -> tuple[Expansion, Tensor]:
        """The gradient near `x`, and its difference to the real one there, `[V, N]`."""
        if self.real is None:
            here = Expansion(self.gradient, x.detach(), self.probe)
            return here, here.value.detach() - self.utility.target
        move = x - self.real
        return self._about_real, self._about_real.push(move, move.abs().flatten(1).amax(1).clamp_min(TINY))

    @cached_property
    def _about_real(self) -> Expansion:
        assert self.real is not None
        return Expansion(self.gradient, self.real.detach(), self.probe)

    def slope(self, near: Expansion, x: Tensor, difference: Tensor) -> Tensor:
        """∂(UM − β·PM)/∂x; the two share nothing, so on a GPU they are computed side by side."""
        weights = self.utility.slope(difference)
        if self.floor:
            weights = weights * (self.beyond_floor(difference) > 0)[:, None]
        if not self.beta:
            return near.pull(weights)
        privacy_slope = beside(lambda: self._privacy_slope(x))
        return near.pull(weights) - self.beta * privacy_slope()

    def beyond_floor(self, difference: Tensor) -> Tensor:
        """By how much the squared distance exceeds the floor's, `[V]`."""
        return difference.square().sum(1) - self._floor_squared

    @cached_property
    def _floor_squared(self) -> Tensor:
        return self.floor**2 * self.utility.target.square().sum(1)

    def _privacy_slope(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.privacy(point).sum(), point)
        return slope


def wide(value: Tensor, like: Tensor) -> Tensor:
    """One number a victim, `[V]`, with as many axes as `like [V, ...]`."""
    return value.view(-1, *(1 for _ in like.shape[1:]))
