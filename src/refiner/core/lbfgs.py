"""L-BFGS for many victims at once, each with its own history and its own line search.

Why not `torch.optim.LBFGS`: it has one history and one line search for all of its parameters, so that victims
would share step sizes, or be optimised one after another. The search of `Refiner` has another one, with a
fixed number of evaluations (`refiner.defenses.refine.solver`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from refiner import checks

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""`x [V, ...]` → values `[V]` and gradients `[V, ...]`."""

# A step must achieve this share of the decrease that the gradient predicts (Armijo), and has so many trials.
_SUFFICIENT_DECREASE, _MAX_TRIALS = 1e-4, 12


class LBFGSState(NamedTuple):
    """The state of each victim's search; a history pair whose `inverse` is zero is empty."""

    value: Tensor
    gradient: Tensor
    """`[V, P]`"""
    steps: Tensor
    """Past steps `[history, V, P]`, a ring buffer."""
    gradient_changes: Tensor
    """The change of the gradient over each of these steps."""
    inverse: Tensor
    """1 / (step · gradient change), `[history, V]`."""
    scale: Tensor
    """The scale of the inverse Hessian by the latest pair, `[V]`; zero before the first."""
    stuck: Tensor
    """`[V]`: no step, not even along the negative gradient, lowers the value any more."""
    newest: Tensor
    """The index of the latest pair, one number on the host."""


@dataclass(frozen=True)
class LBFGS:
    """Limited-memory BFGS (Nocedal 1980) with a backtracking line search.

    Args:
        lr: The factor on the first trial step, > 0.
        history: How many past steps are kept per victim, 1 to 1000.

    Raises:
        SettingError: A setting is out of its range.

    >>> optimizer = LBFGS()
    >>> def bowl(x): return (x - 3).square().sum(1), 2 * (x - 3)
    >>> x = torch.zeros(2, 5)
    >>> state = optimizer.init(x, bowl)
    >>> for _ in range(3): x, state = optimizer.step(x, state, bowl)
    >>> torch.allclose(x, torch.full_like(x, 3.0), atol=1e-4)
    True
    """

    lr: float = 1.0
    history: int = 20

    def __post_init__(self) -> None:
        checks.number("lr", self.lr, 0, above=True)
        checks.integer("history", self.history, 1, 1000)

    def init(self, x: Tensor, evaluate: Evaluate) -> LBFGSState:
        """The state at the starting point.

        Args:
            x: The starting point `[V, ...]`.
            evaluate: Returns the values `[V]` and gradients `[V, ...]` at a point.

        Returns:
            A state with an empty history.
        """
        value, gradient = evaluate(x)
        flat, count = gradient.flatten(1), len(x)
        steps, gradient_changes = (flat.new_zeros(self.history, count, flat.shape[1]) for _ in range(2))
        stuck = torch.zeros(count, dtype=torch.bool, device=x.device)
        inverse, scale = flat.new_zeros(self.history, count), flat.new_zeros(count)
        newest = torch.tensor(self.history - 1)
        return LBFGSState(value, flat, steps, gradient_changes, inverse, scale, stuck, newest)

    def step(
        self, x: Tensor, state: LBFGSState, evaluate: Evaluate, lr_scale: float | Tensor = 1.0
    ) -> tuple[Tensor, LBFGSState]:
        """One step of every victim that is not stuck; no victim's value ever rises.

        Args:
            x: The current point `[V, ...]`.
            state: The state at `x`; its history is changed in place, so that it can't be used again.
            evaluate: Returns the values `[V]` and gradients `[V, ...]` at a point.
            lr_scale: A factor on the learning rate, one number or one for each victim `[V]`.

        Returns:
            The next point and its state.
        """
        direction = -self._times_inverse_hessian(state)
        descent = (direction * state.gradient).sum(1)
        use_gradient = (state.scale == 0) | ~(descent < 0)
        direction = torch.where(use_gradient[:, None], -state.gradient, direction)
        descent = torch.where(use_gradient, -state.gradient.square().sum(1), descent)
        size = 1 / state.gradient.abs().sum(1).clamp_min(1e-30)
        rate = lr_scale.to(size) if isinstance(lr_scale, Tensor) else lr_scale
        t = self.lr * rate * torch.where(use_gradient, size.clamp_max(1), torch.ones_like(size))
        after, value, gradient, moved = self._line_search(x, state, evaluate, direction, descent, t)
        updated = self._update_history(state, (after - x).flatten(1), gradient - state.gradient, moved)
        # Without a step the history is dropped; if the gradient itself failed, nothing is left to try.
        stuck = state.stuck | (~moved & use_gradient)
        return after, updated._replace(value=value, gradient=gradient, stuck=stuck)

    def _line_search(
        self, x: Tensor, state: LBFGSState, evaluate: Evaluate, direction: Tensor, descent: Tensor, t: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Shorten each victim's step until its value decreases enough."""
        best, value, gradient = x, state.value, state.gradient
        searching = ~state.stuck
        for _ in range(_MAX_TRIALS):
            trial = x + (t[:, None] * direction).view_as(x)
            new_value, new_gradient = evaluate(trial)
            flat = new_gradient.flatten(1)
            finite = new_value.isfinite() & flat.isfinite().all(1)
            enough = searching & finite & (new_value <= state.value + _SUFFICIENT_DECREASE * t * descent)
            enough = enough & (new_value < state.value)
            best = torch.where(enough.view(-1, *(1 for _ in x.shape[1:])), trial, best)
            value = torch.where(enough, new_value, value)
            gradient = torch.where(enough[:, None], flat, gradient)
            searching = searching & ~enough
            if not bool(searching.any()):
                break
            # The minimum of the parabola through both values and the derivative, within bounds.
            curvature = 2 * (new_value - state.value - t * descent)
            parabola = -t * t * descent / torch.where(curvature > 0, curvature, torch.inf)
            shorter = torch.where(finite, parabola.clamp(min=0.1 * t, max=0.5 * t), 0.1 * t)
            t = torch.where(searching, shorter, t)
        return best, value, gradient, ~state.stuck & ~searching

    def _update_history(
        self, state: LBFGSState, step: Tensor, gradient_change: Tensor, moved: Tensor
    ) -> LBFGSState:
        curvature, length = (step * gradient_change).sum(1), gradient_change.square().sum(1)
        # A pair without positive curvature would give a direction of ascent.
        useful = moved & (curvature > 1e-10 * length)
        # A victim that found no step drops its history and restarts along its gradient.
        keep = moved | state.stuck
        newest = (int(state.newest) + 1) % self.history
        inverse = torch.where(keep, state.inverse, 0)
        inverse[newest] = torch.where(useful, 1 / curvature, 0)
        state.steps[newest], state.gradient_changes[newest] = step, gradient_change
        scale = torch.where(useful, curvature / length, torch.where(keep, state.scale, 0))
        return state._replace(inverse=inverse, scale=scale, newest=torch.tensor(newest))

    def _times_inverse_hessian(self, state: LBFGSState) -> Tensor:
        """The estimated inverse Hessian times the gradient: Nocedal's two loops."""
        order = [(int(state.newest) - back) % self.history for back in range(self.history)]
        q = state.gradient
        coefficients: dict[int, Tensor] = {}
        for i in order:
            coefficients[i] = state.inverse[i] * (state.steps[i] * q).sum(1)
            q = q - coefficients[i][:, None] * state.gradient_changes[i]
        r = state.scale[:, None] * q
        for i in reversed(order):
            correction = state.inverse[i] * (state.gradient_changes[i] * r).sum(1)
            r = r + (coefficients[i] - correction)[:, None] * state.steps[i]
        return r
