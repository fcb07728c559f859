"""Priors: what an attacker assumes about images before it sees an upload, as a cost for each victim."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from refiner import checks
from refiner.core.module_inputs import input_statistics
from refiner.core.task import Parameters, Task


@dataclass(frozen=True, eq=False)
class Guess:
    """The input of a prior: guessed images and what they were made from."""

    x: Tensor
    """Images `[V, B, *input]`."""
    latent: Tensor
    """The optimised variables `[V, …]`: the images themselves, or a generator's input."""
    task: Task
    models: Sequence[tuple[Parameters, Mapping[str, Tensor]]]
    """The model's parameters and batch-norm statistics in the round of each upload."""
    restarts: int
    """This many consecutive rows are guesses of the same victim."""


class Prior(Protocol):
    """A cost of guesses."""

    def __call__(self, guess: Guess) -> Tensor:
        """Return the cost of each guess, `[V]`."""


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
            checks.number("total_variation", self.weight, 0)

    def __call__(self, guess: Guess) -> Tensor:
        # The axes after [V, B, C]; inputs without height or width have no neighbouring pixels.
        axes = [axis for axis in range(3, guess.x.ndim) if guess.x.shape[axis] > 1]
        differences = [guess.x.diff(dim=axis).abs().flatten(1).mean(1) for axis in axes]
        weight = self.weight.to(guess.x) if isinstance(self.weight, Tensor) else self.weight
        return weight * sum(differences, guess.x.new_zeros(len(guess.x))) / max(len(differences), 1)


@dataclass(frozen=True)
class SquaredLength:
    """Pixels are small: their mean square (the ℓ2 prior of GradInversion).

    >>> SquaredLength(2.0)(Guess(torch.ones(1, 1, 3, 8, 8), torch.ones(1), None, (), 1)).tolist()
    [2.0]
    """

    weight: float

    def __post_init__(self) -> None:
        checks.number("squared_length", self.weight, 0)

    def __call__(self, guess: Guess) -> Tensor:
        return self.weight * guess.x.square().flatten(1).mean(1)


@dataclass(frozen=True)
class LatentGaussian:
    """A generator's input is standard normal: the KL divergence of each victim's entries from N(0, 1).

    >>> z = torch.randn(1, 1, 100_000, generator=torch.Generator().manual_seed(0))
    >>> float(LatentGaussian(1.0)(Guess(z, z, None, (), 1))) < 1e-3
    True
    """

    weight: float

    def __post_init__(self) -> None:
        checks.number("divergence", self.weight, 0)

    def __call__(self, guess: Guess) -> Tensor:
        var, mean = torch.var_mean(guess.latent.flatten(1), dim=1, correction=0)
        return self.weight * (var + mean.square() - 1 - var.clamp_min(1e-12).log()) / 2


@dataclass(frozen=True)
class GroupConsistency:
    """The restarts of one victim agree: the mean squared distance to their mean."""

    weight: float

    def __post_init__(self) -> None:
        checks.number("consistency", self.weight, 0)

    def __call__(self, guess: Guess) -> Tensor:
        groups = guess.x.reshape(-1, guess.restarts, *guess.x.shape[1:])
        deviation = groups - groups.mean(1, keepdim=True).detach()
        return self.weight * deviation.square().flatten(2).mean(2).flatten()


@dataclass(frozen=True)
class BatchNormStatistics:
    """Features have the running statistics of the model's batch norms."""

    weight: float

    def __post_init__(self) -> None:
        checks.number("statistics", self.weight, 0)

    def __call__(self, guess: Guess) -> Tensor:
        costs = [_statistics_error(guess.x, guess.task, *model) for model in guess.models if model[1]]
        return self.weight * torch.stack(costs).mean(0) if costs else guess.x.new_zeros(len(guess.x))


def _statistics_error(x: Tensor, task: Task, parameters: Parameters, running: Mapping[str, Tensor]) -> Tensor:
    """The squared difference of the statistics of `x` from the `running` ones of one model, `[V]`."""

    def batch_statistics(x: Tensor) -> list[Tensor]:
        return input_statistics(task, parameters, x, list(running))

    computed = torch.func.vmap(batch_statistics)(x)
    errors = [
        (batch - expected.to(batch)).square().sum((1, 2)) / expected.shape[1]
        for batch, expected in zip(computed, running.values(), strict=True)
    ]
    return torch.stack(errors).sum(0)
