"""Equation 2 for a batch of victims: the objective UM − β·PM, its slope, and the gradient along a direction.

The gradient of robust data is taken as it is ("curved"), or as its first-order expansion about the real
data ("straight"): g + J·(x* − x) with J = ∂g/∂x. That one has no even orders, so its error has no mean.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.core.capture import beside
from refiner.defenses.refine.utility import TINY, Utility


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
        """The difference after a move that changes it by `change`, if that takes no new gradient to know."""

    def _say(self, difference: Tensor) -> Tensor:
        """1 where UM still has a say, 0 where it has none, for every victim."""
        return (self.utility.distance(difference) > self.floor).to(difference.dtype)

    def _privacy_slope(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            (slope,) = torch.autograd.grad(self.privacy(point).sum(), point)
        return -self.beta * slope

    def _with_privacy(self, x: Tensor, utility_slope: Callable[[], Tensor]) -> Tensor:
        """The slope of both metrics; they share nothing, so on a GPU they are computed side by side."""
        if not self.beta:
            return utility_slope()
        privacy_slope = beside(lambda: self._privacy_slope(x))
        return utility_slope() + privacy_slope()


@dataclass(frozen=True)
class Curved(Problem):
    """The gradient of robust data as it is."""

    def slope(self, x: Tensor, difference: Tensor | None) -> tuple[Tensor, Tensor]:
        now: list[Tensor] = []

        def utility_slope() -> Tensor:
            with torch.enable_grad():
                point = x.detach().requires_grad_()
                found = self.gradient(point) - self.utility.target
                now.append(found.detach())
                objective = self.utility.value(found) * self._say(found.detach())
                (slope,) = torch.autograd.grad(objective.sum(), point)
            return slope

        return self._with_privacy(x, utility_slope), now[0]

    def along(self, x: Tensor, difference: Tensor, move: Tensor) -> Tensor:
        with torch.no_grad():
            return self.gradient(x + move) - self.utility.target - difference

    def moved(self, difference: Tensor, change: Tensor) -> Tensor | None:
        return None


@dataclass(frozen=True)
class Straight(Problem):
    """The gradient's first-order expansion about the real data `point`.

    `recorded` is the real gradient with its graph: every product with the transposed Jacobian is a walk back
    through the same graph.
    """

    point: Tensor
    recorded: Tensor

    def slope(self, x: Tensor, difference: Tensor | None) -> tuple[Tensor, Tensor]:
        now = self._start(x) if difference is None else difference

        def utility_slope() -> Tensor:
            pull = self.utility.slope(now) * self._say(now)[:, None]
            (slope,) = torch.autograd.grad(self.recorded, self.point, grad_outputs=pull, retain_graph=True)
            return slope

        return self._with_privacy(x, utility_slope), now

    def along(self, x: Tensor, difference: Tensor, move: Tensor) -> Tensor:
        return self._push(move)

    def _push(self, move: Tensor) -> Tensor:
        # A finite difference is half the cost of the exact product, and it only steers the search.
        with torch.no_grad():
            return self.gradient(self.point.detach() + move) - self.utility.target

    def _start(self, x: Tensor) -> Tensor:
        move = x - self.point.detach()
        probe = 0.05 / move.abs().flatten(1).amax(1).clamp_min(TINY)
        return self._push(wide(probe, move) * move) / probe[:, None]

    def moved(self, difference: Tensor, change: Tensor) -> Tensor | None:
        return difference + change


def wide(value: Tensor, like: Tensor) -> Tensor:
    """One number a victim, `[V]`, with as many axes as `like [V, ...]`."""
    return value.view(-1, *(1 for _ in like.shape[1:]))
