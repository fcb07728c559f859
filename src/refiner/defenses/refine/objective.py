"""The objective of Equation 2, UM − β·PM, for a batch of victims, and the linearised gradient."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from refiner.core.cuda_graphs import start_on_side_stream
from refiner.defenses.refine.utility import TINY, Utility

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
    floor: float
    """Relative gradient distance below which UM is not reduced further: a closer match reveals the image."""
    probe: float
    real: Tensor | None = None
    """The real data if the upload is the gradient linearised about them (`upload="straight"`)."""

    @cached_property
    def utility(self) -> Utility:
        """The utility metric."""
        return self.make_utility()

    def linearize(self, x: Tensor) -> tuple[Linearization, Tensor]:
        """The gradient near `x`, and its difference from the real one at `x`, `[V, N]`."""
        if self.real is None:
            local = Linearization(self.gradient, self.recorded_gradient, x.detach(), self.probe)
            value = local.value
            return local, value - self.utility.target
        offset = x - self.real
        max_abs = offset.abs().flatten(1).amax(1).clamp_min(TINY)
        return self._about_real_data, self._about_real_data.jvp(offset, max_abs)

    @cached_property
    def _about_real_data(self) -> Linearization:
        assert self.real is not None
        return Linearization(self.gradient, self.recorded_gradient, self.real.detach(), self.probe)

    def utility_gradient(self, local: Linearization, difference: Tensor, excess: Tensor) -> Tensor:
        """∂UM/∂x; zero for victims that have reached the floor."""
        gradient = local.vjp(self.utility.gradient(difference))
        return gradient * expand_like(excess > 0, gradient) if self.floor else gradient

    def privacy_gradient(self, x: Tensor) -> Callable[[], Tensor]:
        """A function that returns β·∂PM/∂x; on a GPU it is computed on a side stream until it is called."""
        return start_on_side_stream(lambda: self.beta * self._privacy_gradient(x))

    def excess_over_floor(self, difference: Tensor) -> Tensor:
        """The squared distance minus the squared floor, `[V]`."""
        distance: Tensor = difference.norm(dim=1)
        floor: Tensor = self.floor * self.utility.target.norm(dim=1)
        return distance.square() - floor.square()

    def step_to_floor(self, difference: Tensor, change: Tensor, excess: Tensor) -> Tensor:
        """The first t > 0, `[V]`, with `difference + t·change` on the floor; infinite if there is none."""
        if not self.floor:
            return torch.full_like(excess, torch.inf)
        a, half_b = change.square().sum(1), (change * difference).sum(1)
        discriminant = half_b.square() - a * excess
        reaches = (excess > 0) & (half_b < 0) & (discriminant > 0)
        root = (-half_b - discriminant.clamp_min(0).sqrt()) / a.clamp_min(TINY)
        return torch.where(reaches, root, torch.inf)

    def _privacy_gradient(self, x: Tensor) -> Tensor:
        if not self.beta:
            return torch.zeros_like(x)
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            (gradient,) = torch.autograd.grad(self.privacy(point).sum(), point)
        return gradient


def expand_like(value: Tensor, like: Tensor) -> Tensor:
    """One number per victim, `[V]`, with as many axes as `like [V, ...]`."""
    return value.view(-1, *(1 for _ in like.shape[1:]))
