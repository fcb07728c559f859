"""Minimisation of an attack's objective by Adam or L-BFGS, with the best point of every guess."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from refiner.core.lbfgs import LBFGS, Evaluate, LBFGSState
from refiner.core.optim import Adam, OptimizerState

Projection = Callable[[Tensor], Tensor]


class DescentState(NamedTuple):
    """The state of the minimisation for a chunk of V guesses."""

    z: Tensor
    """The present variables, `[V, …]`."""
    best_z: Tensor
    """The variables with the lowest objective so far, `[V, …]`."""
    best_value: Tensor
    """The lowest objective so far, `[V]`."""
    diverged: Tensor
    """bool `[V]`: the objective or its gradient was not finite; the guess stays at its best point."""
    optimizer_state: tuple[Tensor, ...]


class Descent(Protocol):
    """A minimisation method."""

    def init(self, z: Tensor, evaluate: Evaluate) -> DescentState:
        """Return the state before the first iteration."""

    def advance(self, state: DescentState, evaluate: Evaluate, begin: int, until: int) -> DescentState:
        """Return the state after iterations `begin` to `until`."""

    def finished(self, state: DescentState) -> bool:
        """Return whether more iterations would change nothing."""


@dataclass(frozen=True)
class AdamDescent:
    """Adam or signed Adam, whose learning rate is divided by ten at given fractions of the iterations."""

    optimizer: Adam
    decays: Sequence[float]
    iterations: int
    project: Projection
    """Maps variables to the nearest allowed ones after every step."""
    lr_factor: float | Tensor = 1.0
    """A factor on the learning rate: one for all guesses, or one for each, `[V]`."""

    def init(self, z: Tensor, evaluate: Evaluate) -> DescentState:
        """Return the state before the first iteration; nothing is evaluated."""
        best_value = z.new_full((len(z),), torch.inf)
        diverged = torch.zeros(len(z), dtype=torch.bool, device=z.device)
        return DescentState(z, z, best_value, diverged, tuple(self.optimizer.init(z)))

    def advance(self, state: DescentState, evaluate: Evaluate, begin: int, until: int) -> DescentState:
        """Return the state after iterations `begin` to `until`; the last iterate is evaluated too."""
        optimizer_state = OptimizerState(*state.optimizer_state)
        for i in range(begin, until):
            value, gradient = evaluate(state.z)
            state = _record_best(state, value, gradient)
            decay = 0.1 ** sum(i >= fraction * self.iterations for fraction in self.decays)
            z, optimizer_state = self.optimizer.step(
                state.z,
                gradient.nan_to_num(0, 0, 0),
                optimizer_state,
                lr_scale=decay * self.lr_factor,
                active=~state.diverged,
            )
            state = state._replace(z=self.project(z))
        if until == self.iterations:
            state = _record_best(state, *evaluate(state.z))
        return state._replace(optimizer_state=tuple(optimizer_state))

    def finished(self, state: DescentState) -> bool:
        """Return whether every guess has diverged."""
        return bool(state.diverged.all())


@dataclass(frozen=True)
class LBFGSDescent:
    """L-BFGS; a step never raises a value, so that the last point is the best."""

    optimizer: LBFGS
    lr_factor: float | Tensor = 1.0
    """A factor on the learning rate: one for all guesses, or one for each, `[V]`."""

    def init(self, z: Tensor, evaluate: Evaluate) -> DescentState:
        """Return the state before the first iteration; a guess has diverged if its value is not finite."""
        state = self.optimizer.init(z, evaluate)
        diverged = ~(state.value.isfinite() & state.gradient.isfinite().all(1))
        value = torch.where(diverged, torch.inf, state.value)
        return DescentState(z, z, value, diverged, tuple(state._replace(value=value, stuck=diverged)))

    def advance(self, state: DescentState, evaluate: Evaluate, begin: int, until: int) -> DescentState:
        """Return the state after iterations `begin` to `until`."""
        z, lbfgs = state.z, LBFGSState(*state.optimizer_state)
        # A step overwrites the history in place; if it is interrupted, `state` must still be consistent.
        lbfgs = lbfgs._replace(steps=lbfgs.steps.clone(), gradient_changes=lbfgs.gradient_changes.clone())
        for _ in range(begin, until):
            z, lbfgs = self.optimizer.step(z, lbfgs, evaluate, lr_scale=self.lr_factor)
        return DescentState(z, z, lbfgs.value, state.diverged, tuple(lbfgs))

    def finished(self, state: DescentState) -> bool:
        """Return whether no guess has a step that lowers its value."""
        return bool(LBFGSState(*state.optimizer_state).stuck.all())


def _record_best(state: DescentState, value: Tensor, gradient: Tensor) -> DescentState:
    """Record points that improve on the best so far, and guesses that diverged."""
    finite = value.isfinite() & gradient.flatten(1).isfinite().all(1)
    better = finite & ~state.diverged & (value < state.best_value)
    better_rows = better.view(-1, *(1 for _ in state.z.shape[1:]))
    return state._replace(
        best_value=torch.where(better, value, state.best_value),
        best_z=torch.where(better_rows, state.z, state.best_z),
        diverged=state.diverged | ~finite,
    )
