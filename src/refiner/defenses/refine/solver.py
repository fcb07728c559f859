"""Solves Equation 2, min UM(x*) − β·PM(x*), for all victims at once and with work worth ι iterations."""

import torch
from torch import Tensor

from refiner.core.optim import GD, Adam, Optimizer, SignedAdam
from refiner.defenses.refine.problem import Problem, wide
from refiner.defenses.refine.utility import TINY

SOLVERS = ("descent", "adam", "signed", "conjugate")


def solve(problem: Problem, x: Tensor, *, solver: str, iterations: int, step: float, reach: float) -> Tensor:
    """Robust data from the start `x [V, B, ...]`; `reach` bounds what one conjugate step may move a pixel."""
    if solver == "conjugate":
        return _conjugate(problem, x, iterations, reach)
    return _first_order(problem, x, iterations, solver, step)


def _first_order(problem: Problem, x: Tensor, iterations: int, solver: str, step: float) -> Tensor:
    optimizer: Optimizer = {"descent": GD, "adam": Adam, "signed": SignedAdam}[solver](lr=step)
    state = optimizer.init(x)
    for i in range(iterations):
        slope, _ = problem.slope(x, None)
        # Steps of a fixed length only settle if they shrink; plain descent is the paper's and keeps its step.
        scale = 1.0 if solver == "descent" else 1 - i / iterations
        x, state = optimizer.step(x, slope, state, lr_scale=scale)
    return x


def _conjugate(problem: Problem, x: Tensor, iterations: int, reach: float) -> Tensor:
    """Nonlinear conjugate gradients; one more plain gradient along the direction gives the step.

    With J·d known the utility is a parabola in the step t, and the best t has a closed form.
    """
    direction = previous = torch.zeros_like(x)
    difference: Tensor | None = None
    for _ in range(iterations):
        slope, difference = problem.slope(x, difference)
        direction = _direction(slope, previous, direction)
        tallest = direction.abs().flatten(1).amax(1).clamp_min(TINY)
        probe = 0.1 * reach / tallest
        along = problem.along(x, difference, wide(probe, x) * direction) / probe[:, None]
        t = _step(problem, slope, difference, direction, along).minimum(reach / tallest)
        x = x + wide(t, x) * direction
        difference = problem.moved(difference, t[:, None] * along)
        previous = slope
    return x


def _direction(slope: Tensor, previous: Tensor, direction: Tensor) -> Tensor:
    """Polak and Ribière's direction, never with a negative share, steepest descent where it would rise."""
    share = (_dot(slope, slope - previous) / _dot(previous, previous).clamp_min(TINY)).clamp_min(0)
    # Before the first step `previous` and `direction` are zero, and so is what the share multiplies.
    candidate = wide(share, slope) * direction - slope
    falls = _dot(candidate, slope) < 0
    return torch.where(wide(falls, slope), candidate, -slope)


def _step(problem: Problem, slope: Tensor, difference: Tensor, direction: Tensor, along: Tensor) -> Tensor:
    """The step `[V]` to the parabola's minimum, and not past the floor."""
    curvature = problem.utility.value(along).clamp_min(TINY)
    t = -_dot(slope, direction) / (2 * curvature)
    if problem.floor:
        t = torch.minimum(t, _to_floor(problem, difference, along))
    return t.clamp_min(0)


def _to_floor(problem: Problem, difference: Tensor, along: Tensor) -> Tensor:
    """The first t at which ‖difference + t·along‖ meets the floor; infinite where it never does."""
    radius = problem.floor * problem.utility.target.norm(dim=1)
    a = along.square().sum(1).clamp_min(TINY)
    b = (along * difference).sum(1)
    c = difference.square().sum(1) - radius.square()
    inside = b.square() - a * c
    meets = (c > 0) & (b < 0) & (inside > 0)
    root = (-b - inside.clamp_min(0).sqrt()) / a
    return torch.where(meets, root, torch.inf)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)
