"""The utility metric UM: the distance of the gradient of robust data to the real one (Equations 3 and 4)."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from refiner.core.gradients import flatten_parameters
from refiner.core.task import Parameters, Task

TINY = 1e-30
"""A lower bound for divisors."""


@dataclass(frozen=True)
class Utility:
    """Weighted squared distance to each victim's real gradient."""

    target: Tensor
    """The real gradients `[V, N]`."""
    weight: Tensor
    """A difference is multiplied by it before it is squared, `[V, N]` or `[1, N]`."""
    scale: Tensor
    """One factor per victim, `[V]`."""

    def value(self, difference: Tensor) -> Tensor:
        """UM of every victim, `[V]`, for `difference = gradient − target`."""
        return (self.weight * difference).square().sum(1) * self.scale

    @cached_property
    def _hessian(self) -> Tensor:
        """∂²UM/∂gradient², which is diagonal."""
        return 2 * self.scale[:, None] * self.weight.square()

    def gradient(self, difference: Tensor) -> Tensor:
        """∂UM/∂gradient, `[V, N]`."""
        return self._hessian * difference

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """aᵀ·H·b with UM's Hessian H, `[V]`; for a = b it is UM's curvature along a."""
        return (self._hessian * a * b).sum(1)


def make_utility(
    task: Task, parameters: Parameters, target: Tensor, *, tau: float, element_power: float, relative: bool
) -> Utility:
    """UM for a target gradient; weight |g·θ|^power · τ^layer; `relative` makes UM of a zero gradient one."""
    layer_weight = torch.cat(
        [
            target.new_full((sum(task.shapes[name].numel() for name in layer.parameters),), tau**position)
            for position, layer in enumerate(task.layers, start=1)
        ]
    )
    weight = layer_weight[None]
    if element_power:
        values = flatten_parameters(task, parameters)
        weight = (target * values).abs().pow(element_power) * weight
    scale = target.new_ones(len(target))
    if relative:
        of_zero_gradient = (weight * target).square().sum(1)
        # A zero gradient, as of a saturated sample, has nothing to match: its UM is zero everywhere.
        scale = torch.where(of_zero_gradient > TINY, 1 / of_zero_gradient.clamp_min(TINY), 0)
    return Utility(target, weight, scale)
