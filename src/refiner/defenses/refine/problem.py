"""Equation 2 for a batch of victims: the objective UM − β·PM, its slope, and the gradient along a direction.

The gradient of robust data is taken as it is ("curved"), or as its first-order expansion about the real data
("straight"): g + J·(x* − x) with J = ∂g/∂x. The straight one has no even orders, so that its error has no mean.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from refiner.defenses.refine.utility import Utility


@dataclass(frozen=True)
class Problem(ABC):
    """One batch of victims and the two metrics."""

    gradient: Callable[[Tensor], Tensor]
    """Data `[V, B, ...]` → gradients `[V, N]`; differentiable where its argument asks for it."""
    utility: Utility
    privacy: Callable[[Tensor], Tensor]
    beta: float
    floor: float
    """Relative gradient distance below which the match has no say: nearer shows the picture."""

    @abstractmethod
    def slope(self, x: Tensor, difference: Tensor | None) -> tuple[Tensor, Tensor]:
        """∂(UM − β·PM)/∂x and the difference to the real gradient `[V, N]`, which may be known already."""

    @abstractmethod
    def along(self, x: Tensor, difference: Tensor, move: Tensor) -> Tensor:
        """By how much a small `move` changes the difference, `[V, N]`."""

    @abstractmethod
    def moved(self, difference: Tensor, change: Tensor) -> Tensor | None:
        """The difference after a move that changes it by `change`, if it can be told without a new gradient."""

    def _say(self, difference: Tensor) -> Tensor | float:
        """Whether UM still has a say, for every victim."""
        return (self.utility.distance(difference) > self.floor).to(difference.dtype) if self.floor else 1.0

    def _privacy_slope(self, x: Tensor) -> Tensor | float:
        if not self.beta:
            return 0.0
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.privacy(point).sum(), point)
        return -self.beta * slope


@dataclass(frozen=True)
class Curved(Problem):
    """The gradient of robust data as it is."""

    def slope(self, x: Tensor, difference: Tensor | None) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            now = self.gradient(point) - self.utility.target
            objective = self.utility.value(now) * self._say(now.detach())
            (slope,) = torch.autograd.grad(objective.sum(), point)
        return slope + self._privacy_slope(x), now.detach()

    def along(self, x: Tensor, difference: Tensor, move: Tensor) -> Tensor:
        with torch.no_grad():
            return self.gradient(x + move) - self.utility.target - difference

    def moved(self, difference: Tensor, change: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Straight(Problem):
    """The gradient's first-order expansion about the real data."""

    real: Tensor
    push: Callable[[Tensor], Tensor]
    """J·v, exactly."""
    _point: Tensor = field(init=False)
    _real_gradient: Tensor = field(init=False)

    def __post_init__(self) -> None:
        # Recorded once: every product with the transposed Jacobian is a walk back through the same graph.
        with torch.enable_grad():
            point = self.real.detach().requires_grad_()
            object.__setattr__(self, "_point", point)
            object.__setattr__(self, "_real_gradient", self.gradient(point))

    def slope(self, x: Tensor, difference: Tensor | None) -> tuple[Tensor, Tensor]:
        now = self.push(x - self.real) if difference is None else difference
        pull = self.utility.slope(now) * _column(self._say(now))
        (slope,) = torch.autograd.grad(self._real_gradient, self._point, grad_outputs=pull, retain_graph=True)
        return slope + self._privacy_slope(x), now

    def along(self, x: Tensor, difference: Tensor, move: Tensor) -> Tensor:
        # A finite difference about the real data: half the cost of the exact product, and it only sets a step.
        with torch.no_grad():
            return self.gradient(self.real + move) - self._real_gradient.detach()

    def moved(self, difference: Tensor, change: Tensor) -> Tensor | None:
        return difference + change


def _column(value: Tensor | float) -> Tensor | float:
    return value[:, None] if isinstance(value, Tensor) else value
