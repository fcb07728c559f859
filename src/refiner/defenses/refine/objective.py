"""The objective of Equation 2, UM − β·PM, for a batch of victims, and the linearised gradient."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from refiner.core.cuda_graphs import start_on_side_stream
from refiner.defenses.refine.utility import Utility

GradientFunction = Callable[[Tensor], Tensor]
"""Data `[V, B, ...]` → gradients `[V, N]`; differentiable if its argument requires a gradient."""


@dataclass(frozen=True)
class Linearization:
    """The gradient near one point, g + J·(x − point), without forming J."""

    gradient: GradientFunction
    recorded_gradient: GradientFunction
    """The same function, possibly less exact: the one that is recorded for vjps."""
    point: Tensor
    probe: float
    """The largest change of a pixel in a finite difference."""

    @cached_property
    def value(self) -> Tensor:
        """g at the point, `[V, N]`, by `recorded_gradient`."""
        return self._graph.detach()

    @cached_property
    def _graph(self) -> Tensor:
        with torch.enable_grad():
            return self.recorded_gradient(self.point.requires_grad_())

    def vjp(self, cotangent: Tensor) -> Tensor:
        """Jᵀ·cotangent for `cotangent [V, N]`: a backward pass through the recorded gradient."""
        (product,) = torch.autograd.grad(self._graph, self.point, grad_outputs=cotangent, retain_graph=True)
        return product

    def jvp(self, direction: Tensor, max_abs: Tensor) -> Tensor:
        """J·direction; `max_abs [V]` is the largest absolute entry of `direction`.

        A finite difference: half the cost of the exact product, and accurate enough to steer the search.
        """
        scale = self.probe / max_abs
        with torch.no_grad():
            same_function = self.recorded_gradient is self.gradient
            at_point = self.value if same_function else self.gradient(self.point)
            at_probe = self.gradient(self.point + expand_like(scale, direction) * direction)
            return (at_probe - at_point) / scale[:, None]


@dataclass(frozen=True)
class Objective:
    """UM and PM of one batch of victims, with the gradients that the solvers need."""

    gradient: GradientFunction
    recorded_gradient: GradientFunction
    make_utility: Callable[[], Utility]
    """Returns the utility metric; called late, since the real gradient is computed on a side stream."""
    privacy: Callable[[Tensor], Tensor]
    beta: float
    probe: float

    @cached_property
    def utility(self) -> Utility:
        """The utility metric."""
        return self.make_utility()

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """UM − β·PM `[V]` at `x`, and its gradient."""
        value, gradient, _ = self.evaluate_near(x)
        return value, gradient

    def evaluate_near(self, x: Tensor) -> tuple[Tensor, Tensor, Linearization]:
        """UM − β·PM `[V]` at `x`, its gradient, and the model's gradient near `x`."""
        privacy = start_on_side_stream(lambda: self._privacy(x))
        local = Linearization(self.gradient, self.recorded_gradient, x.detach(), self.probe)
        difference = local.value - self.utility.target
        utility_gradient = local.vjp(self.utility.gradient(difference))
        pm, privacy_gradient = privacy()
        return self.utility.value(difference) - pm, utility_gradient - privacy_gradient, local

    def _privacy(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """β·PM `[V]` and its gradient."""
        if not self.beta:
            return x.new_zeros(len(x)), torch.zeros_like(x)
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            pm = self.privacy(point)
            (gradient,) = torch.autograd.grad(pm.sum(), point)
        return self.beta * pm.detach(), self.beta * gradient


def expand_like(value: Tensor, like: Tensor) -> Tensor:
    """One number per victim, `[V]`, with as many axes as `like [V, ...]`."""
    return value.view(-1, *(1 for _ in like.shape[1:]))
