"""Solves Equation 2, min UM(x*) − β·PM(x*), for all victims at once and with work worth ι iterations."""

import torch
from torch import Tensor

from refiner.core.optim import GD, Adam, Optimizer, SignedAdam
from refiner.defenses.refine.problem import Expansion, Problem, wide
from refiner.defenses.refine.utility import TINY

SOLVERS = ("descent", "adam", "signed", "conjugate")

# In passes forward or backward through the model: a plain gradient takes one forward, one backward to the
# activations and one to the weights, and the paper counts an iteration as two gradients.
_ITERATION, _GRADIENT, _PULL = 6, 3, 4


def solve(
    problem: Problem, x: Tensor, *, solver: str, iterations: int, step: float, reach: float, renew: bool
) -> Tensor:
    """Robust data from the start `x [V, B, ...]`; `step` is for first-order solvers, the rest for conjugate.

    `reach` bounds what one step may move a pixel; with `renew` the gradient is expanded anew at every step.
    """
    if solver == "conjugate":
        return _conjugate(problem, x, steps(iterations, renew), reach, renew)
    return _first_order(problem, x, iterations, solver, step)


def steps(iterations: int, renew: bool) -> int:
    """How many conjugate steps are the work of `iterations` of the paper's.

    >>> steps(10, renew=False), steps(10, renew=True), steps(5, renew=False), steps(1, renew=True)
    (8, 6, 3, 1)
    """
    once, each = (0, _PULL + 2 * _GRADIENT) if renew else (_GRADIENT, _PULL + _GRADIENT)
    return max((iterations * _ITERATION - once) // each, min(iterations, 1))


def _first_order(problem: Problem, x: Tensor, iterations: int, solver: str, step: float) -> Tensor:
    optimizer: Optimizer = {"descent": GD, "adam": Adam, "signed": SignedAdam}[solver](lr=step)
    state = optimizer.init(x)
    for i in range(iterations):
        near, difference = problem.expand(x)
        slope = problem.slope(near, x, difference)
        # Steps of a fixed length only settle if they shrink; plain descent is the paper's and keeps its step.
        scale = 1.0 if solver == "descent" else 1 - i / iterations
        x, state = optimizer.step(x, slope, state, lr_scale=scale)
    return x


def _conjugate(problem: Problem, x: Tensor, steps: int, reach: float, renew: bool) -> Tensor:
    """Conjugate gradients on the expanded gradient.

    With J·direction known, by one more plain gradient, the utility is a parabola in the step, and its minimum
    has a closed form.
    """
    direction = previous = torch.zeros_like(x)
    length = x.new_zeros(len(x))
    near: Expansion | None = None
    for _ in range(steps):
        if near is None:
            near, difference = problem.expand(x)
        slope = problem.slope(near, x, difference)
        # Polak and Ribière's share of the old direction, never a negative one, none where it would rise.
        before, length = length, _dot(slope, slope)
        share = ((length - _dot(slope, previous)) / before.clamp_min(TINY)).clamp_min(0)
        rise = share * _dot(direction, slope)
        share = torch.where(rise < length, share, 0)
        direction = wide(share, x) * direction - slope
        fall = length - torch.where(rise < length, rise, 0)
        tallest = direction.abs().flatten(1).amax(1).clamp_min(TINY)
        along = near.push(direction, tallest)
        t = (fall / problem.utility.curvature(along).clamp_min(TINY)).clamp_min(0)
        if problem.floor:
            t = t.minimum(_to_floor(problem, difference, along))
        t = t.minimum(reach / tallest)
        x, difference = x + wide(t, x) * direction, difference + t[:, None] * along
        previous = slope
        # Dropped before the next one is made: each holds a recorded gradient.
        near = None if renew else near
    return x


def _to_floor(problem: Problem, difference: Tensor, along: Tensor) -> Tensor:
    """The first t at which ‖difference + t·along‖ meets the floor; infinite where it never does."""
    a = _dot(along, along).clamp_min(TINY)
    b = _dot(along, difference)
    c = problem.beyond_floor(difference)
    inside = b.square() - a * c
    meets = (c > 0) & (b < 0) & (inside > 0)
    root = (-b - inside.clamp_min(0).sqrt()) / a
    return torch.where(meets, root, torch.inf)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)
