"""Solvers of Equation 2, min UM(x*) − β·PM(x*), for all victims at once with the work of ι iterations."""

import torch
from torch import Tensor

from refiner.core.optim import GD, Adam, Optimizer, SignedAdam
from refiner.defenses.refine.objective import Objective, expand_like
from refiner.defenses.refine.secants import Secants
from refiner.defenses.refine.utility import TINY

SOLVERS = ("descent", "adam", "signed", "conjugate", "secant")

# Cost in forward or backward passes through the model. A gradient takes one forward pass, one backward pass
# to the activations and one to the weights; the paper counts an iteration as two gradients.
_ITERATION_PASSES, _GRADIENT_PASSES, _VJP_PASSES = 6, 3, 4
# The last secant step is damped by this factor: no later step can correct one that is too long.
_LAST_STEP_FACTOR = 0.5


def solve(
    objective: Objective, x: Tensor, *, solver: str, iterations: int, step: float, max_step: float
) -> Tensor:
    """Robust data, searched from the start `x [V, B, ...]`.

    `step` is the learning rate of the first-order solvers; `max_step` bounds the change of a pixel in one
    step of the others.
    """
    if solver == "secant":
        return _secant(objective, x, second_order_steps(iterations, solver), max_step)
    if solver == "conjugate":
        return _conjugate(objective, x, second_order_steps(iterations, solver), max_step)
    return _first_order(objective, x, iterations, solver, step)


def second_order_steps(iterations: int, solver: str) -> int:
    """How many second-order steps cost as much as `iterations` of the paper's.

    >>> second_order_steps(10, "secant"), second_order_steps(10, "conjugate")
    (8, 6)
    >>> second_order_steps(5, "secant"), second_order_steps(1, "conjugate")
    (3, 1)
    """
    fixed_cost, step_cost = {
        "conjugate": (0, _VJP_PASSES + 2 * _GRADIENT_PASSES),
        "secant": (_GRADIENT_PASSES, _VJP_PASSES + _GRADIENT_PASSES),
    }[solver]
    return max((iterations * _ITERATION_PASSES - fixed_cost) // step_cost, min(iterations, 1))


def _first_order(objective: Objective, x: Tensor, iterations: int, solver: str, step: float) -> Tensor:
    optimizer: Optimizer = {"descent": GD, "adam": Adam, "signed": SignedAdam}[solver](lr=step)
    state = optimizer.init(x)
    for i in range(iterations):
        privacy_gradient = objective.privacy_gradient(x)
        local, difference = objective.linearize(x)
        excess = objective.excess_over_floor(difference)
        gradient = objective.utility_gradient(local, difference, excess) - privacy_gradient()
        # Steps of fixed length converge only if they shrink; plain descent is the paper's and keeps its step.
        scale = 1.0 if solver == "descent" else 1 - i / iterations
        x, state = optimizer.step(x, gradient, state, lr_scale=scale)
    return x


def _conjugate(objective: Objective, x: Tensor, steps: int, max_step: float) -> Tensor:
    """Conjugate gradients on the linearised gradient and on the privacy metric.

    J·direction, from one more plain gradient, makes UM a parabola in the step size: its minimum has a closed
    form, and so has the step size at which the floor is reached.
    """
    direction = previous = torch.zeros_like(x)
    squared_norm = x.new_zeros(len(x))
    for _ in range(steps):
        privacy_gradient = objective.privacy_gradient(x)
        local, difference = objective.linearize(x)
        excess = objective.excess_over_floor(difference)
        gradient = objective.utility_gradient(local, difference, excess) - privacy_gradient()
        # Polak–Ribière: never a negative multiple of the old direction, and none if that would be uphill.
        last_squared_norm, squared_norm = squared_norm, _dot(gradient, gradient)
        momentum = ((squared_norm - _dot(gradient, previous)) / last_squared_norm.clamp_min(TINY)).clamp_min(
            0
        )
        uphill = momentum * _dot(direction, gradient)
        momentum = torch.where(uphill < squared_norm, momentum, 0)
        direction = expand_like(momentum, x) * direction - gradient
        descent = squared_norm - torch.where(uphill < squared_norm, uphill, 0)
        max_abs = _max_abs(direction)
        change = local.jvp(direction, max_abs)
        t = (descent / objective.utility.dot(change, change).clamp_min(TINY)).clamp_min(0)
        t = t.minimum(objective.step_to_floor(difference, change, excess)).minimum(max_step / max_abs)
        x, previous = x + expand_like(t, x) * direction, gradient
        del local  # before the next one is made: it holds a recorded gradient
    return x


def _secant(objective: Objective, x: Tensor, steps: int, max_step: float) -> Tensor:
    """Gradient steps on the part of UM that the secants of earlier steps cannot remove.

    The gradient is computed at every point, and any two points show how it changes in between (Anderson
    acceleration). For a curved gradient that is more accurate than a linearisation about one point, and only
    the first direction costs an extra gradient.
    """
    if not steps:
        return x  # before the privacy gradient is started: work on a side stream must be joined
    secants: Secants | None = None
    privacy_gradient = objective.privacy_gradient(x)
    for number in range(steps):
        local, difference = objective.linearize(x)
        excess = objective.excess_over_floor(difference)
        utility = objective.utility
        secants = secants or Secants(utility)
        secants.add_point(x, difference)
        correction, residual = secants.correction()
        gradient = objective.utility_gradient(local, residual, excess) - privacy_gradient()
        squared_norm = _dot(gradient, gradient)
        if secants.step_size is None:
            change = local.jvp(gradient, _max_abs(gradient))
            secants.step_size = squared_norm / utility.dot(change, change).clamp_min(TINY)
        is_last = number == steps - 1 > 0
        step_size = _LAST_STEP_FACTOR * secants.step_size if is_last else secants.step_size
        step = expand_like(excess > 0, correction) * correction - expand_like(step_size, gradient) * gradient
        # A step to the minimum along the gradient reduces UM by half of step_size · squared_norm.
        decrease = step_size * squared_norm / 2 / utility.value(residual).clamp_min(TINY)
        remaining = (1 - decrease).clamp_min(0).sqrt()
        t = objective.step_to_floor(difference, remaining[:, None] * residual - difference, excess)
        x = x + expand_like(t.minimum(max_step / _max_abs(step)).clamp_max(1), step) * step
        del local
    return x


def _max_abs(step: Tensor) -> Tensor:
    """The largest absolute entry of each victim's step, `[V]`."""
    largest: Tensor = step.abs().flatten(1).amax(1)
    return largest.clamp_min(TINY)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)
