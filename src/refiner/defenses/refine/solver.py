"""Solves Equation 2, min UM(x*) − β·PM(x*), for all victims at once and with work worth ι iterations."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.core.optim import GD, Adam, Optimizer, SignedAdam
from refiner.defenses.refine.utility import Utility

SOLVERS = ("descent", "adam", "signed", "conjugate")
_TINY = 1e-30


@dataclass(frozen=True)
class Problem:
    """One batch of victims: their gradient as a function of robust data, and the two metrics."""

    gradient: Callable[[Tensor], Tensor]
    """Robust data `[V, B, ...]` → gradients `[V, N]`; differentiable where its argument asks for it."""
    utility: Utility
    privacy: Callable[[Tensor], Tensor]
    beta: float
    floor: float
    """Relative gradient distance below which the match has no say: nearer shows the picture."""

    def slope(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """∂(UM − β·PM)/∂x, and the difference gradient(x) − target."""
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            difference = self.gradient(point) - self.utility.target
            objective = self.utility.value(difference)
            if self.floor:
                objective = objective * (self.utility.distance(difference.detach()) > self.floor)
            if self.beta:
                objective = objective - self.beta * self.privacy(point)
            (slope,) = torch.autograd.grad(objective.sum(), point)
        return slope, difference.detach()


def solve(problem: Problem, x: Tensor, *, solver: str, iterations: int, step: float, reach: float) -> Tensor:
    """Robust data from the start `x [V, B, ...]`; `reach` bounds what one conjugate step may move a pixel."""
    if solver == "conjugate":
        return _conjugate(problem, x, iterations, reach)
    return _first_order(problem, x, iterations, solver, step)


def _first_order(problem: Problem, x: Tensor, iterations: int, solver: str, step: float) -> Tensor:
    optimizer: Optimizer = {"descent": GD, "adam": Adam, "signed": SignedAdam}[solver](lr=step)
    state = optimizer.init(x)
    for i in range(iterations):
        slope, _ = problem.slope(x)
        # Steps of a fixed length only settle if they shrink; plain descent is the paper's and keeps its step.
        scale = 1.0 if solver == "descent" else 1 - i / iterations
        x, state = optimizer.step(x, slope, state, lr_scale=scale)
    return x


def _conjugate(problem: Problem, x: Tensor, iterations: int, reach: float) -> Tensor:
    """Nonlinear conjugate gradients; one more plain gradient along the direction gives the step.

    With J·d known the utility is a parabola in the step t, and the best t has a closed form.
    """
    direction = previous = torch.zeros_like(x)
    for _ in range(iterations):
        slope, difference = problem.slope(x)
        direction = _direction(slope, previous, direction)
        t = _step(problem, x, slope, difference, direction, reach)
        x = x + _wide(t, x) * direction
        previous = slope
    return x


def _direction(slope: Tensor, previous: Tensor, direction: Tensor) -> Tensor:
    """Polak and Ribière's direction, never with a negative share, steepest descent where it would rise."""
    share = (_dot(slope, slope - previous) / _dot(previous, previous).clamp_min(_TINY)).clamp_min(0)
    # Before the first step `previous` and `direction` are zero, and so is what the share multiplies.
    candidate = _wide(share, slope) * direction - slope
    falls = _dot(candidate, slope) < 0
    return torch.where(_wide(falls, slope), candidate, -slope)


def _step(
    problem: Problem, x: Tensor, slope: Tensor, difference: Tensor, direction: Tensor, reach: float
) -> Tensor:
    """The step `[V]` to the parabola's minimum, not past the floor, and no pixel further than `reach`."""
    utility = problem.utility
    tallest = direction.abs().flatten(1).amax(1).clamp_min(_TINY)
    probe = 0.1 * reach / tallest
    moved = problem.gradient((x + _wide(probe, x) * direction).detach()).detach() - utility.target
    along = (moved - difference) / probe[:, None]
    curvature = utility.value(along).clamp_min(_TINY)
    t = -_dot(slope, direction) / (2 * curvature)
    if problem.floor:
        t = torch.minimum(t, _to_floor(problem, difference, along))
    return torch.minimum(t, reach / tallest).clamp_min(0)


def _to_floor(problem: Problem, difference: Tensor, along: Tensor) -> Tensor:
    """The first t at which ‖difference + t·along‖ meets the floor; infinite where it never does."""
    radius = problem.floor * problem.utility.target.norm(dim=1)
    a = along.square().sum(1).clamp_min(_TINY)
    b = (along * difference).sum(1)
    c = difference.square().sum(1) - radius.square()
    inside = b.square() - a * c
    meets = (c > 0) & (b < 0) & (inside > 0)
    root = (-b - inside.clamp_min(0).sqrt()) / a
    return torch.where(meets, root, torch.inf)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)


def _wide(value: Tensor, like: Tensor) -> Tensor:
    return value.view(-1, *(1 for _ in like.shape[1:]))
