"""Equation 2 for a batch of victims: the objective UM − β·PM, with the gradient expanded about a point."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from refiner.core.cuda_graphs import beside
from refiner.defenses.refine.utility import TINY, Utility

Gradient = Callable[[Tensor], Tensor]
"""Data `[V, B, ...]` → gradients `[V, N]`; differentiable where its argument asks for it."""


@dataclass(frozen=True)
class Expansion:
    """The gradient near one point, g + J·(x − point), without ever holding J."""

    gradient: Gradient
    recorded: Gradient
    """The same, perhaps less exact: what is recorded and walked back."""
    point: Tensor
    probe: float
    """How far a finite difference moves a pixel."""

    @cached_property
    def value(self) -> Tensor:
        """g at the point, `[V, N]`, as it is recorded."""
        return self._graph.detach()

    @cached_property
    def _graph(self) -> Tensor:
        with torch.enable_grad():
            return self.recorded(self.point.requires_grad_())

    def pull(self, weights: Tensor) -> Tensor:
        """Jᵀ·weights for `weights [V, N]`: a walk back through the recorded gradient."""
        (slope,) = torch.autograd.grad(self._graph, self.point, grad_outputs=weights, retain_graph=True)
        return slope

    def push(self, move: Tensor, tallest: Tensor) -> Tensor:
        """J·move, where no pixel moves by more than `tallest [V]`.

        A finite difference is half the cost of the exact product, and it only steers a search.
        """
        scale = self.probe / tallest
        with torch.no_grad():
            here = self.value if self.recorded is self.gradient else self.gradient(self.point)
            return (self.gradient(self.point + wide(scale, move) * move) - here) / scale[:, None]


@dataclass(frozen=True)
class Problem:
    """One batch of victims and the two metrics."""

    gradient: Gradient
    recorded: Gradient
    measure: Callable[[], Utility]
    """Gives the utility metric; asked as late as can be, since the real gradient may be computed beside."""
    privacy: Callable[[Tensor], Tensor]
    beta: float
    floor: float
    """Relative gradient distance below which the match has no say: nearer shows the image."""
    probe: float
    real: Tensor | None = None
    """The real data, if what is uploaded is the gradient's expansion about them ("straight")."""

    @cached_property
    def utility(self) -> Utility:
        """The utility metric."""
        return self.measure()

    def expand(self, x: Tensor) -> tuple[Expansion, Tensor]:
        """The gradient near `x`, and its difference to the real one there, `[V, N]`."""
        if self.real is None:
            here = Expansion(self.gradient, self.recorded, x.detach(), self.probe)
            value = here.value
            return here, value - self.utility.target
        move = x - self.real
        return self._about_real, self._about_real.push(move, move.abs().flatten(1).amax(1).clamp_min(TINY))

    @cached_property
    def _about_real(self) -> Expansion:
        assert self.real is not None
        return Expansion(self.gradient, self.recorded, self.real.detach(), self.probe)

    def descent(self, near: Expansion, difference: Tensor, beyond: Tensor) -> Tensor:
        """∂UM/∂x; zero for victims that have come down to the floor."""
        slope = near.pull(self.utility.slope(difference))
        return slope * wide(beyond > 0, slope) if self.floor else slope

    def climb(self, x: Tensor) -> Callable[[], Tensor]:
        """β·∂PM/∂x; on a GPU it is computed beside what follows, until it is asked for."""
        return beside(lambda: self.beta * self._privacy_slope(x))

    def beyond_floor(self, difference: Tensor) -> Tensor:
        """By how much the squared distance exceeds the floor's, `[V]`."""
        reached: Tensor = difference.norm(dim=1)
        least: Tensor = self.floor * self.utility.target.norm(dim=1)
        return reached.square() - least.square()

    def to_floor(self, difference: Tensor, along: Tensor, beyond: Tensor) -> Tensor:
        """The first t, `[V]`, with `difference + t·along` on the floor; infinite if there is none ahead."""
        if not self.floor:
            return torch.full_like(beyond, torch.inf)
        square, lean = along.square().sum(1), (along * difference).sum(1)
        inside = lean.square() - square * beyond
        meets = (beyond > 0) & (lean < 0) & (inside > 0)
        root = (-lean - inside.clamp_min(0).sqrt()) / square.clamp_min(TINY)
        return torch.where(meets, root, torch.inf)

    def _privacy_slope(self, x: Tensor) -> Tensor:
        if not self.beta:
            return torch.zeros_like(x)
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.privacy(point).sum(), point)
        return slope


def wide(value: Tensor, like: Tensor) -> Tensor:
    """One number a victim, `[V]`, with as many axes as `like [V, ...]`."""
    return value.view(-1, *(1 for _ in like.shape[1:]))
