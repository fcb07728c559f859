"""How a search moves: by a first-order optimizer, or by L-BFGS; the best so far is kept for every guess."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from refiner.core.lbfgs import LBFGS, Evaluate, LBFGSState
from refiner.core.optim import Adam, State

Box = Callable[[Tensor], Tensor]


class Search(NamedTuple):
    """Where the search for a chunk of guesses stands."""

    z: Tensor
    best_z: Tensor
    best: Tensor
    """The lowest objective so far, `[V]`."""
    diverged: Tensor
    """`[V]`: no longer a number; frozen at its best."""
    memory: tuple[Tensor, ...]
    """What the optimizer remembers."""


class Walk(Protocol):
    """A way to move."""

    def begin(self, z: Tensor, evaluate: Evaluate) -> Search:
        """The search before its first step."""

    def advance(self, search: Search, evaluate: Evaluate, begin: int, until: int) -> Search:
        """Iterations `begin` to `until`."""

    def over(self, search: Search) -> bool:
        """Whether more iterations would change nothing."""


@dataclass(frozen=True)
class FirstOrder:
    """Adam and its like, with a learning rate that is divided by ten at some shares of the iterations."""

    optimizer: Adam
    decays: Sequence[float]
    iterations: int
    box: Box
    rates: float | Tensor = 1.0
    """A factor on the learning rate, one for all guesses or one for each, `[V]`."""

    def begin(self, z: Tensor, evaluate: Evaluate) -> Search:
        """Nothing is known yet."""
        best = z.new_full((len(z),), torch.inf)
        none = torch.zeros(len(z), dtype=torch.bool, device=z.device)
        return Search(z, z, best, none, tuple(self.optimizer.init(z)))

    def advance(self, search: Search, evaluate: Evaluate, begin: int, until: int) -> Search:
        """Iterations `begin` to `until`; after the last one the final guess is judged too."""
        state = State(*search.memory)
        for i in range(begin, until):
            value, slope = evaluate(search.z)
            search = _noted(search, value, slope)
            scale = 0.1 ** sum(i >= share * self.iterations for share in self.decays)
            z, state = self.optimizer.step(
                search.z,
                slope.nan_to_num(0, 0, 0),
                state,
                lr_scale=scale * self.rates,
                active=~search.diverged,
            )
            search = search._replace(z=self.box(z))
        if until == self.iterations:
            search = _noted(search, *evaluate(search.z))
        return search._replace(memory=tuple(state))

    def over(self, search: Search) -> bool:
        """Only when nothing is left to move."""
        return bool(search.diverged.all())


@dataclass(frozen=True)
class QuasiNewton:
    """L-BFGS; a step never raises a value, so the last guess is the best."""

    optimizer: LBFGS
    rates: float | Tensor = 1.0
    """A factor on the learning rate, one for all guesses or one for each, `[V]`."""

    def begin(self, z: Tensor, evaluate: Evaluate) -> Search:
        """The first value and slope; where they are no numbers the victim is lost."""
        state = self.optimizer.init(z, evaluate)
        lost = ~(state.value.isfinite() & state.slope.isfinite().all(1))
        value = torch.where(lost, torch.inf, state.value)
        return Search(z, z, value, lost, tuple(state._replace(value=value, stuck=lost)))

    def advance(self, search: Search, evaluate: Evaluate, begin: int, until: int) -> Search:
        """Iterations `begin` to `until`."""
        z, state = search.z, LBFGSState(*search.memory)
        # A step writes into the history; a search that is interrupted must be found as it was.
        state = state._replace(moves=state.moves.clone(), turns=state.turns.clone())
        for _ in range(begin, until):
            z, state = self.optimizer.step(z, state, evaluate, lr_scale=self.rates)
        return Search(z, z, state.value, search.diverged, tuple(state))

    def over(self, search: Search) -> bool:
        """When no guess finds a step that lowers its value."""
        return bool(LBFGSState(*search.memory).stuck.all())


def _noted(search: Search, value: Tensor, slope: Tensor) -> Search:
    """The best so far, and who has just diverged: those are not moved any more."""
    fine = value.isfinite() & slope.flatten(1).isfinite().all(1)
    better = fine & ~search.diverged & (value < search.best)
    wide = better.view(-1, *(1 for _ in search.z.shape[1:]))
    return search._replace(
        best=torch.where(better, value, search.best),
        best_z=torch.where(wide, search.z, search.best_z),
        diverged=search.diverged | ~fine,
    )
