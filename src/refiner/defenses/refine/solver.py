"""Solvers of Equation 2, min UM(x*) − β·PM(x*), for all victims at once with the work of ι iterations."""

import torch
from torch import Tensor

from refiner.defenses.refine.inverse_hessian import InverseHessian
from refiner.defenses.refine.objective import Linearization, Objective, expand_like
from refiner.defenses.refine.utility import TINY

SOLVERS = ("descent", "lbfgs")

# Cost in forward or backward passes through the model. A gradient takes one forward pass, one backward pass
# to the activations and one to the weights; the paper counts an iteration as two gradients.
_ITERATION_PASSES, _GRADIENT_PASSES, _VJP_PASSES = 6, 3, 4
# A step must achieve this share of the decrease that the gradient predicts (Armijo).
_SUFFICIENT_DECREASE = 1e-4
_HISTORY = 20


def solve(objective: Objective, x: Tensor, *, solver: str, iterations: int, step: float) -> Tensor:
    """Robust data, searched from the start `x [V, B, ...]`; `step` is the learning rate of "descent"."""
    if solver == "descent":
        for _ in range(iterations):
            x = x - step * objective.evaluate(x)[1]
        return x
    return lbfgs(objective, x, evaluations(iterations))


def evaluations(iterations: int) -> int:
    """How many evaluations of L-BFGS cost as much as `iterations` of the paper's.

    >>> evaluations(10), evaluations(24), evaluations(1), evaluations(0)
    (8, 20, 1, 0)
    """
    passes = iterations * _ITERATION_PASSES - _GRADIENT_PASSES
    return max(passes // (_GRADIENT_PASSES + _VJP_PASSES), min(iterations, 1))


def lbfgs(objective: Objective, x: Tensor, evaluations: int) -> Tensor:
    """The lowest point of L-BFGS with backtracking after a fixed number of evaluations.

    Every victim has its own history and step size. Nothing depends on data but the values themselves: the
    same kernels run for all victims, so that a CUDA graph can record them and their time reveals nothing. A
    point replaces the last one only if it is lower, so that more evaluations never give a worse result.
    """
    if not evaluations:
        return x
    value, gradient, local = objective.evaluate_near(x)
    inverse_hessian = InverseHessian(
        _first_step(objective, local, gradient), x, min(max(evaluations - 1, 1), _HISTORY)
    )
    del local  # it holds a recorded gradient, which is large
    t = torch.ones_like(value)
    for _ in range(evaluations - 1):
        direction = -(inverse_hessian @ gradient)
        predicted = t * _dot(direction, gradient)
        trial = x + expand_like(t, x) * direction
        trial_value, trial_gradient = objective.evaluate(trial)
        accepted = trial_value <= value + _SUFFICIENT_DECREASE * predicted  # False for NaN
        where = expand_like(accepted, x)
        new_x, new_gradient = torch.where(where, trial, x), torch.where(where, trial_gradient, gradient)
        inverse_hessian.add(new_x - x, new_gradient - gradient)
        # A rejected step is shortened to the minimum of the parabola through both values, within bounds.
        curvature = 2 * (trial_value - value - predicted)
        shorter = t * (-predicted / curvature.clamp_min(TINY)).nan_to_num(0).clamp(0.1, 0.5)
        t = torch.where(accepted, 1, shorter)
        x, gradient, value = new_x, new_gradient, torch.where(accepted, trial_value, value)
    return x


def _first_step(objective: Objective, local: Linearization, gradient: Tensor) -> Tensor:
    """The step size `[V]` to the minimum of UM along its gradient if the model's gradient were linear."""
    largest = gradient.abs().flatten(1).amax(1).clamp_min(TINY)
    change = local.jvp(gradient, largest)
    return _dot(gradient, gradient) / objective.utility.dot(change, change).clamp_min(TINY)


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)
