"""The utility metric UM: how far the gradient of robust data is from the real one (Equations 3 and 4)."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from refiner.core.gradients import flatten_parameters
from refiner.core.task import Parameters, Task

TINY = 1e-30


@dataclass(frozen=True)
class Utility:
    """Weighted squared distance to each victim's real gradient `target [V, N]`."""

    target: Tensor
    weight: Tensor
    """What a difference is multiplied with before it is squared, `[V, N]` or `[1, N]`."""
    scale: Tensor
    """One factor a victim."""

    def value(self, difference: Tensor) -> Tensor:
        """UM of every victim, `[V]`, for `difference = gradient − target`."""
        return (self.weight * difference).square().sum(1) * self.scale

    @cached_property
    def _twice(self) -> Tensor:
        """∂²UM/∂gradient², which is diagonal."""
        return 2 * self.scale[:, None] * self.weight.square()

    def slope(self, difference: Tensor) -> Tensor:
        """∂UM/∂gradient, `[V, N]`."""
        return self._twice * difference

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        """Two changes of the gradient in UM's measure, `[V]`: of one with itself, UM's curvature along it."""
        return (self._twice * a * b).sum(1)


def utility(
    task: Task, parameters: Parameters, target: Tensor, *, tau: float, element_power: float, relative: bool
) -> Utility:
    """UM for a target gradient: weight |g·θ|^power · τ^layer; `relative` makes UM of a zero gradient one."""
    layer = torch.cat(
        [
            target.new_full((sum(task.shapes[name].numel() for name in one.parameters),), tau**position)
            for position, one in enumerate(task.layers, start=1)
        ]
    )
    weight = layer[None]
    if element_power:
        values = flatten_parameters(task, parameters)
        weight = (target * values).abs().pow(element_power) * weight
    scale = target.new_ones(len(target))
    if relative:
        whole = (weight * target).square().sum(1)
        # A gradient of zero, as a saturated sample has, is matched by no weights: it asks for nothing.
        scale = torch.where(whole > TINY, 1 / whole.clamp_min(TINY), 0)
    return Utility(target, weight, scale)
