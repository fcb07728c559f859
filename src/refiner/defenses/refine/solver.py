"""Solves Equation 2, min UM(x*) − β·PM(x*), for all victims at once and with work worth ι iterations."""

import torch
from torch import Tensor

from refiner.core.optim import GD, Adam, Optimizer, SignedAdam
from refiner.defenses.refine.problem import Problem, wide
from refiner.defenses.refine.secants import Secants
from refiner.defenses.refine.utility import TINY

SOLVERS = ("descent", "adam", "signed", "conjugate", "secant")

# In passes forward or backward through the model: a plain gradient takes one forward, one backward to the
# activations and one to the weights, and the paper counts an iteration as two gradients.
_ITERATION, _GRADIENT, _PULL = 6, 3, 4
# What is taken of the last secant step down the slope: no later step makes up for one that went too far.
_LAST = 0.5


def solve(problem: Problem, x: Tensor, *, solver: str, iterations: int, step: float, reach: float) -> Tensor:
    """Robust data from the start `x [V, B, ...]`; `step` is the learning rate of first-order solvers.

    `reach` bounds what one step of the others may move a pixel.
    """
    if solver == "secant":
        return _secant(problem, x, steps(iterations, solver), reach)
    if solver == "conjugate":
        return _conjugate(problem, x, steps(iterations, solver), reach)
    return _first_order(problem, x, iterations, solver, step)


def steps(iterations: int, solver: str) -> int:
    """How many second-order steps are the work of `iterations` of the paper's.

    >>> steps(10, "secant"), steps(10, "conjugate"), steps(5, "secant"), steps(1, "conjugate")
    (8, 6, 3, 1)
    """
    once, each = {
        "conjugate": (0, _PULL + 2 * _GRADIENT),
        "secant": (_GRADIENT, _PULL + _GRADIENT),
    }[solver]
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


def _conjugate(problem: Problem, x: Tensor, steps: int, reach: float) -> Tensor:
    """Conjugate gradients on the gradient as expanded about each point, and on the privacy metric's slope.

    With J·direction known, by one more plain gradient, the utility is a parabola in the step, and its minimum
    has a closed form; so has the place where the floor is met.
    """
    direction = previous = torch.zeros_like(x)
    length = x.new_zeros(len(x))
    for _ in range(steps):
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
        tallest = _tallest(direction)
        along = near.push(direction, tallest)
        t = (fall / problem.utility.dot(along, along).clamp_min(TINY)).clamp_min(0)
        t = t.minimum(problem.to_floor(difference, along, beyond)).minimum(reach / tallest)
        x, previous = x + wide(t, x) * direction, slope
        del near  # before the next one is made: it holds a recorded gradient
    return x


def _secant(problem: Problem, x: Tensor, steps: int, reach: float) -> Tensor:
    """Steps down the slope of what is left of UM when all that earlier moves have taught is used.

    The gradient is computed at every point, and any two points show how it changes in between (Anderson's
    mixing). Where the model bends that is nearer to the truth than an expansion about one of them, and no
    direction need be tried before it is taken, but for the first.
    """
    if not steps:
        return x  # before anything is begun that none would wait for
    known: Secants | None = None
    climb = problem.climb(x)
    for number in range(steps):
        near, difference = problem.expand(x)
        beyond = problem.beyond_floor(difference)
        utility = problem.utility
        known = known or Secants(utility)
        known.learn(x, difference)
        back, left = known.undo()
        slope = problem.descent(near, left, beyond) - climb()
        fall = _dot(slope, slope)
        if known.rate is None:
            along = near.push(slope, _tallest(slope))
            known.rate = fall / utility.dot(along, along).clamp_min(TINY)
        rate = _LAST * known.rate if number == steps - 1 > 0 else known.rate
        move = wide(beyond > 0, back) * back - wide(rate, slope) * slope
        # A step to the minimum along the slope takes half of rate · fall from UM.
        share = (1 - rate * fall / 2 / utility.value(left).clamp_min(TINY)).clamp_min(0).sqrt()
        t = problem.to_floor(difference, share[:, None] * left - difference, beyond)
        x = x + wide(t.minimum(reach / _tallest(move)).clamp_max(1), move) * move
        del near
    return x


def _tallest(move: Tensor) -> Tensor:
    """The most that a pixel moves, `[V]`."""
    most: Tensor = move.abs().flatten(1).amax(1)
    return most.clamp_min(TINY)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)
