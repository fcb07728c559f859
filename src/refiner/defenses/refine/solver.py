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
        climb = problem.climb(x)
        near, difference = problem.expand(x)
        slope = problem.descent(near, difference, problem.beyond_floor(difference)) - climb()
        # Steps of a fixed length only settle if they shrink; plain descent is the paper's and keeps its step.
        scale = 1.0 if solver == "descent" else 1 - i / iterations
        x, state = optimizer.step(x, slope, state, lr_scale=scale)
    return x


def _conjugate(problem: Problem, x: Tensor, steps: int, reach: float, renew: bool) -> Tensor:
    """Conjugate gradients on the expanded gradient, and on the privacy metric by its slope at the same point.

    With J·direction known, by one more plain gradient, the utility is a parabola in the step, and its minimum
    has a closed form.
    """
    direction = previous = torch.zeros_like(x)
    length = x.new_zeros(len(x))
    near: Expansion | None = None
    for _ in range(steps):
        if near is None:
            climb = problem.climb(x)
            near, difference = problem.expand(x)
            beyond = problem.beyond_floor(difference)
        slope = problem.descent(near, difference, beyond) - climb()
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
        # ‖difference + t·along‖², of which `beyond` is the part above the floor, is a parabola in t as well.
        square, lean = along.norm(dim=1).square(), _dot(along, difference)
        if problem.floor:
            t = t.minimum(_to_floor(beyond, square, lean))
        t = t.minimum(reach / tallest)
        x, difference = x + wide(t, x) * direction, torch.addcmul(difference, t[:, None], along)
        beyond = beyond + t * (2 * lean + t * square)
        previous = slope
        # Dropped before the next one is made: each holds a recorded gradient.
        near = None if renew else near
    return x


def _to_floor(beyond: Tensor, square: Tensor, lean: Tensor) -> Tensor:
    """The first t with beyond + 2·lean·t + square·t² = 0; infinite where there is none ahead."""
    inside = lean.square() - square * beyond
    meets = (beyond > 0) & (lean < 0) & (inside > 0)
    root = (-lean - inside.clamp_min(0).sqrt()) / square.clamp_min(TINY)
    return torch.where(meets, root, torch.inf)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)
