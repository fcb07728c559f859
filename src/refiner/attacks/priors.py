"""What an attacker believes of images before it sees an upload; each a cost, one number a victim."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from refiner import checks
from refiner.core.task import Parameters, Task


@dataclass(frozen=True, eq=False)
class Guess:
    """What a prior judges: images `[V, B, *input]`, and what they were made from."""

    x: Tensor
    latent: Tensor
    """The variables of the search `[V, …]`: the images themselves, or a generator's input."""
    task: Task
    states: Sequence[tuple[Parameters, Mapping[str, Tensor]]]
    """The model's parameters and batch-norm statistics at each upload."""
    restarts: int
    """Neighbours on the victim axis that are guesses at one victim."""


class Prior(Protocol):
    """A cost of guesses."""

    def __call__(self, guess: Guess) -> Tensor:
        """`[V]`"""


@dataclass(frozen=True)
class TotalVariation:
    """Images are smooth: the mean absolute difference of neighbouring pixels.

    >>> guess = Guess(torch.ones(2, 1, 3, 8, 8), torch.ones(2), None, (), 1)
    >>> TotalVariation(1.0)(guess).tolist()
    [0.0, 0.0]
    """

    weight: float | Tensor
    """One for all victims, or one for each, `[V]`."""

    def __post_init__(self) -> None:
        if not isinstance(self.weight, Tensor):
            checks.number("total variation", self.weight, 0)

    def __call__(self, guess: Guess) -> Tensor:
        # [V, B, C, H, W]; what has no height or width has nothing to be smooth in.
        axes = [axis for axis in range(3, guess.x.ndim) if guess.x.shape[axis] > 1]
        parts = [guess.x.diff(dim=axis).abs().flatten(1).mean(1) for axis in axes]
        weight = self.weight.to(guess.x) if isinstance(self.weight, Tensor) else self.weight
        return weight * sum(parts, guess.x.new_zeros(len(guess.x))) / max(len(parts), 1)


@dataclass(frozen=True)
class SquaredLength:
    """Pixels are small: their mean square (GradInversion's ℓ2).

    >>> SquaredLength(2.0)(Guess(torch.ones(1, 1, 3, 8, 8), torch.ones(1), None, (), 1)).tolist()
    [2.0]
    """

    weight: float

    def __post_init__(self) -> None:
        checks.number("squared length", self.weight, 0)

    def __call__(self, guess: Guess) -> Tensor:
        return self.weight * guess.x.square().flatten(1).mean(1)


@dataclass(frozen=True)
class LatentGaussian:
    """A generator's input is a standard normal: the divergence of each victim's entries from one.

    >>> z = torch.randn(1, 1, 100_000, generator=torch.Generator().manual_seed(0))
    >>> float(LatentGaussian(1.0)(Guess(z, z, None, (), 1))) < 1e-3
    True
    """

    weight: float

    def __post_init__(self) -> None:
        checks.number("latent KL", self.weight, 0)

    def __call__(self, guess: Guess) -> Tensor:
        var, mean = torch.var_mean(guess.latent.flatten(1), dim=1, correction=0)
        return self.weight * (var + mean.square() - 1 - var.clamp_min(1e-12).log()) / 2


@dataclass(frozen=True)
class GroupConsistency:
    """Several guesses at one victim agree: the mean squared distance to the mean of them."""

    weight: float

    def __post_init__(self) -> None:
        checks.number("group consistency", self.weight, 0)

    def __call__(self, guess: Guess) -> Tensor:
        groups = guess.x.reshape(-1, guess.restarts, *guess.x.shape[1:])
        away = groups - groups.mean(1, keepdim=True).detach()
        return self.weight * away.square().flatten(2).mean(2).flatten()


@dataclass(frozen=True)
class BatchNormStatistics:
    """Features have the statistics that a model's batch norms remember of its training data."""

    weight: float

    def __post_init__(self) -> None:
        checks.number("batch-norm statistics", self.weight, 0)

    def __call__(self, guess: Guess) -> Tensor:
        costs = [_off(guess.x, guess.task, *state) for state in guess.states if state[1]]
        return self.weight * torch.stack(costs).mean(0) if costs else guess.x.new_zeros(len(guess.x))


def _off(x: Tensor, task: Task, parameters: Parameters, remembered: Mapping[str, Tensor]) -> Tensor:
    """How far the statistics of images are from those of one state of the model."""

    def one(x: Tensor) -> list[Tensor]:
        return task.statistics(parameters, x, list(remembered))

    found = torch.func.vmap(one)(x)
    costs = [
        (statistic - kept.to(statistic)).square().sum((1, 2)) / kept.shape[1]
        for statistic, kept in zip(found, remembered.values(), strict=True)
    ]
    return torch.stack(costs).sum(0)
