"""L-BFGS for many victims at once, each with its own history and its own line search."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from refiner import checks

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""`x [V, ...]` → values `[V]` and slopes `[V, ...]`."""

# A step must keep this share of what the slope promises (Armijo), and has so many trials.
_SUFFICIENT, _TRIALS = 1e-4, 12


class LBFGSState(NamedTuple):
    """Where each victim stands; a pair of the history whose `inverse` is zero is empty."""

    value: Tensor
    slope: Tensor
    """`[V, P]`"""
    moves: Tensor
    """Past steps `[history, V, P]`, in a ring."""
    turns: Tensor
    """What they changed the slope by."""
    inverse: Tensor
    """1 / (move · turn), `[history, V]`."""
    scale: Tensor
    """The size of the inverse curvature by the latest pair, `[V]`; zero before the first."""
    stuck: Tensor
    """`[V]`: no step, not even along the slope itself, lowers the value any more."""
    newest: Tensor
    """The ring's latest pair, one number on the host."""


@dataclass(frozen=True)
class LBFGS:
    """Limited-memory BFGS (Nocedal 1980) with a backtracking line search.

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
        """The state at `x [V, ...]`."""
        value, slope = evaluate(x)
        flat, count = slope.flatten(1), len(x)
        moves, turns = (flat.new_zeros(self.history, count, flat.shape[1]) for _ in range(2))
        none = torch.zeros(count, dtype=torch.bool, device=x.device)
        inverse, scale = flat.new_zeros(self.history, count), flat.new_zeros(count)
        return LBFGSState(value, flat, moves, turns, inverse, scale, none, torch.tensor(self.history - 1))

    def step(
        self, x: Tensor, state: LBFGSState, evaluate: Evaluate, lr_scale: float | Tensor = 1.0
    ) -> tuple[Tensor, LBFGSState]:
        """One step of every victim that is not stuck, which never raises its value; the state is used up.

        `lr_scale` is one factor on the learning rate, or one for each victim, `[V]`.
        """
        direction = -self._times_inverse(state)
        fall = (direction * state.slope).sum(1)
        fresh = (state.scale == 0) | ~(fall < 0)
        direction = torch.where(fresh[:, None], -state.slope, direction)
        fall = torch.where(fresh, -state.slope.square().sum(1), fall)
        size = 1 / state.slope.abs().sum(1).clamp_min(1e-30)
        rate = lr_scale.to(size) if isinstance(lr_scale, Tensor) else lr_scale
        t = self.lr * rate * torch.where(fresh, size.clamp_max(1), torch.ones_like(size))
        after, value, slope, moved = self._search(x, state, evaluate, direction, fall, t)
        kept = self._remember(state, (after - x).flatten(1), slope - state.slope, moved)
        # Without a step the history is dropped; if there was none, nothing is left to try.
        return after, kept._replace(value=value, slope=slope, stuck=state.stuck | (~moved & fresh))

    def _search(
        self, x: Tensor, state: LBFGSState, evaluate: Evaluate, direction: Tensor, fall: Tensor, t: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Shorten each victim's own step until its value falls enough."""
        best, value, slope = x, state.value, state.slope
        seeking = ~state.stuck
        for _ in range(_TRIALS):
            trial = x + (t[:, None] * direction).view_as(x)
            new_value, new_slope = evaluate(trial)
            flat = new_slope.flatten(1)
            finite = new_value.isfinite() & flat.isfinite().all(1)
            enough = seeking & finite & (new_value <= state.value + _SUFFICIENT * t * fall)
            enough = enough & (new_value < state.value)
            best = torch.where(enough.view(-1, *(1 for _ in x.shape[1:])), trial, best)
            value, slope = torch.where(enough, new_value, value), torch.where(enough[:, None], flat, slope)
            seeking = seeking & ~enough
            if not bool(seeking.any()):
                break
            # The minimum of the parabola through both values and the slope, within bounds.
            bend = 2 * (new_value - state.value - t * fall)
            parabola = -t * t * fall / torch.where(bend > 0, bend, torch.inf)
            shorter = torch.where(finite, parabola.clamp(min=0.1 * t, max=0.5 * t), 0.1 * t)
            t = torch.where(seeking, shorter, t)
        return best, value, slope, ~state.stuck & ~seeking

    def _remember(self, state: LBFGSState, move: Tensor, turn: Tensor, moved: Tensor) -> LBFGSState:
        along, length = (move * turn).sum(1), turn.square().sum(1)
        # A pair without positive curvature would make a direction that rises.
        useful = moved & (along > 1e-10 * length)
        # A victim that found no step forgets its history and starts anew along its slope.
        kept = moved | state.stuck
        newest = (int(state.newest) + 1) % self.history
        inverse = torch.where(kept, state.inverse, 0)
        inverse[newest] = torch.where(useful, 1 / along, 0)
        state.moves[newest], state.turns[newest] = move, turn
        scale = torch.where(useful, along / length, torch.where(kept, state.scale, 0))
        return state._replace(inverse=inverse, scale=scale, newest=torch.tensor(newest))

    def _times_inverse(self, state: LBFGSState) -> Tensor:
        """The inverse of the estimated curvature times the slope: Nocedal's two loops."""
        order = [(int(state.newest) - back) % self.history for back in range(self.history)]
        q = state.slope
        shares: dict[int, Tensor] = {}
        for i in order:
            shares[i] = state.inverse[i] * (state.moves[i] * q).sum(1)
            q = q - shares[i][:, None] * state.turns[i]
        r = state.scale[:, None] * q
        for i in reversed(order):
            back = state.inverse[i] * (state.turns[i] * r).sum(1)
            r = r + (shares[i] - back)[:, None] * state.moves[i]
        return r
