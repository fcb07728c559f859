"""Secants: the steps of a search and the changes of the gradient that they caused (Anderson acceleration)."""

import torch
from torch import Tensor

from refiner.defenses.refine.objective import expand_like
from refiner.defenses.refine.utility import TINY, Utility

# The new component of a gradient change must have this share of its square, and of the difference's square;
# otherwise it is rounding error.
_MIN_NEW_SHARE = 1e-6


class Secants:
    """Steps `[V, B, ...]` and the gradient changes `[V, N]` they caused, orthonormal in UM's inner product.

    A linear problem is solved by as many steps as it has dimensions:

    >>> um = Utility(target=torch.zeros(1, 2), weight=torch.ones(1, 2), scale=torch.ones(1))
    >>> secants = Secants(um)
    >>> for x in torch.tensor([[[0.0, 0.0]], [[1.0, 0.0]], [[1.0, 1.0]]]):
    ...     secants.add_point(x, 10 * x)
    >>> step, residual = secants.correction()
    >>> bool((step + 1).abs().max() < 1e-5), bool(residual.abs().max() < 1e-5)
    (True, True)
    """

    def __init__(self, utility: Utility) -> None:
        self.step_size: Tensor | None = None
        """Step size along −∂UM/∂x, `[V]`: set by the first step and adapted by every later one."""
        self._utility = utility
        self._last: tuple[Tensor, Tensor] | None = None
        self._steps: list[Tensor] = []
        self._changes: list[Tensor] = []

    def add_point(self, x: Tensor, difference: Tensor) -> None:
        """Record the next point of the search and its gradient's difference from the real one."""
        last, self._last = self._last, (x, difference)
        if last is None:
            return
        step, change = x - last[0], difference - last[1]
        dot = self._utility.dot
        squared_change, squared_step = dot(change, change), step.square().flatten(1).sum(1)
        for basis_step, basis_change in zip(self._steps, self._changes, strict=True):
            component = dot(change, basis_change)
            step = step - expand_like(component, step) * basis_step
            change = change - component[:, None] * basis_change
        remainder = dot(change, change)
        new = remainder > _MIN_NEW_SHARE * squared_change.maximum(dot(difference, difference))
        # Zero, and so without effect, where nothing is new.
        scale = torch.where(new, remainder, torch.inf).rsqrt()
        self._steps.append(expand_like(scale, step) * step)
        self._changes.append(scale[:, None] * change)
        if self.step_size is not None:
            # The geometric mean with the step size that would have fitted this step.
            adapted = (self.step_size * squared_step / squared_change.clamp_min(TINY)).sqrt()
            self.step_size = torch.where(new, adapted, self.step_size)

    def correction(self) -> tuple[Tensor, Tensor]:
        """The step that, by all secants, reduces the last difference most, and the residual it leaves."""
        assert self._last is not None
        x, residual = self._last
        step = torch.zeros_like(x)
        for basis_step, basis_change in zip(self._steps, self._changes, strict=True):
            component = self._utility.dot(residual, basis_change)
            residual = residual - component[:, None] * basis_change
            step = step - expand_like(component, step) * basis_step
        return step, residual
