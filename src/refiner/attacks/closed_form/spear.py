"""SPEAR: exact inversion of a batch from the gradient of a fully connected first layer with ReLU."""

import time
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.attacks.base import Attack
from refiner.attacks.closed_form.analytic import first_linear_layer
from refiner.attacks.closed_form.sparse_directions import SparseDirections
from refiner.attacks.features import layer_gradient
from refiner.attacks.label_inference import known_labels
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.threat_model import ThreatModel
from refiner.core.input_range import UNIT_RANGE, check_scalar_range
from refiner.core.task import Task
from refiner.errors import DataError

# Starts that are followed in one search: so many for each sample, and at most.
_STARTS_PER_SAMPLE, _STARTS_PER_SEARCH = 12, 256
# A unit is inactive for a sample if the cosine of its row and the sample's direction is below this.
_ZERO = 1e-4
# Rows of the gradient that are smaller than this part of the largest are of units inactive for all samples.
_DEAD = 1e-6
# A sample is confirmed if so many units are active for it just where they have a gradient.
_AGREEMENT = 0.98


class _Layer(NamedTuple):
    """The first layer for one victim, in float64."""

    weight: Tensor
    bias: Tensor
    gw: Tensor
    gb: Tensor

    @property
    def alive(self) -> Tensor:
        """The units with a gradient `[units]`."""
        length: Tensor = self.gw.norm(dim=1)
        return length > _DEAD * float(length.amax())


class _Solution(NamedTuple):
    """Estimates of a batch."""

    x: Tensor
    confirmed: int
    """How many of them activate just the units that have a gradient for them."""


@dataclass(frozen=True)
class Spear(Attack):
    """Reads whole batches off an honest model that starts with a fully connected layer and a ReLU.

    The layer's gradient is gW = Δ X with Δ `[units, B]`, of rank B. Any factorisation gW = L R of that rank
    gives X = Q⁻¹ R and Δ = L Q for an unknown Q `[B, B]`. As a ReLU is inactive for about half of the
    samples, Δ is sparse, and Q's columns are vectors q for which L q has many zeros. Dimitrov et al. guess
    them from random sets of rows, which takes 2^B trials; here reweighted least squares finds them. gb = Δ 1
    then gives their lengths. The wider the layer, the larger the batches that come back exactly. Samples of
    one class are hard to separate in an untrained model of one hidden layer, whose Δ they share.

    >>> from refiner import NoDefense
    >>> from refiner.models import MLP
    >>> x, y = torch.rand(2, 4, 3, 8, 8), torch.tensor([[7, 0, 4, 1], [2, 3, 2, 9]])
    >>> task = Task(MLP(input_shape=(3, 8, 8), activation="relu"), example=x[0])
    >>> found = Spear().reconstruct(Observation.of(task, NoDefense().protect(task, x, y))).x
    >>> bool((found[:, None] - x[:, :, None]).abs().flatten(3).amax(3).amin(2).max() < 1e-3)
    True
    """

    name: ClassVar[str] = "spear"
    reference: ClassVar[str] = (
        "Dimitrov, Baader, Müller and Vechev, SPEAR: Exact Gradient Inversion of Batches in Federated "
        "Learning, NeurIPS 2024"
    )

    starts: int = 4096
    """The most random starts for each client."""
    input_range: tuple[float, float] = UNIT_RANGE
    """The range to which reconstructions are clipped."""

    def __post_init__(self) -> None:
        checks.integer("starts", self.starts, 1)
        check_scalar_range(self.input_range)

    def check(self, task: Task) -> None:
        """Raise unless the model starts with a fully connected layer on the input and has ReLUs.

        Args:
            task: The model and its loss.

        Raises:
            DataError: The model has another structure.
        """
        first_linear_layer(task, self.name)
        if not any(isinstance(module, nn.ReLU) for module in task.modules()):
            raise DataError(
                field="model",
                value=type(task.model).__name__,
                expected="a ReLU after its first layer, as in mlp:activation=relu",
            )

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Reconstruct the batches.

        Args:
            observations: One upload of every victim; of several the first is used.
            threat: The capabilities granted.
            options: The seed of the starts, and the progress.

        Returns:
            The batches. The objective is the share of samples that are not confirmed: put into the model,
            they activate other units than those that have a gradient for them.

        Raises:
            DataError: The model has another structure, or the batch is larger than the layer.
        """
        start = time.perf_counter()
        first = observations[0]
        layer = first_linear_layer(first.task, self.name)
        weight, bias = layer_gradient(first.task, first.gradient, layer)
        if first.samples > min(weight.shape[1:]):
            raise DataError(
                field="batch",
                value=first.samples,
                expected=f"at most {min(weight.shape[1:])}, the layer's width",
            )
        generator = torch.Generator().manual_seed(options.seed)
        matrix, offset = (first.parameters[name].double() for name in (layer.weight, layer.bias))
        solved = []
        for number, (gw, gb) in enumerate(zip(weight.double(), bias.double(), strict=True)):
            options.on_progress(number, len(weight))
            solved.append(self._solve(_Layer(matrix, offset, gw, gb), first.samples, generator))
        options.on_progress(len(weight), len(weight))
        low, high = self.input_range
        x = torch.stack([solution.x for solution in solved]).to(weight).clamp(low, high)
        x = x.view(-1, first.samples, *first.task.input_shape)
        objective = torch.tensor([1 - s.confirmed / first.samples for s in solved], device=x.device)
        diverged = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        labels = known_labels(observations, threat)
        return Reconstruction(x, labels.to(x.device), objective, diverged, time.perf_counter() - start)

    def _solve(self, layer: _Layer, samples: int, generator: torch.Generator) -> "_Solution":
        """The samples of one victim: exact, or the estimate with the most samples that fit their gradient."""
        low, high = self.input_range
        best = _Solution(layer.gw.new_full((samples, layer.gw.shape[1]), (low + high) / 2), 0)
        # The columns of L are orthonormal, so that a random start favours no sample.
        triangle = torch.linalg.qr(layer.gw.T, mode="r").R
        left, singular, _ = torch.linalg.svd(triangle.T)
        if not bool(singular[samples - 1] > _DEAD * singular[0]):
            return best  # of lower rank: some samples have no gradient of their own
        factor = left[:, :samples]
        rows = factor.T @ layer.gw
        directions = SparseDirections(factor, generator)
        at_once = min(_STARTS_PER_SAMPLE * samples, _STARTS_PER_SEARCH)
        for first in range(0, self.starts, at_once):
            directions.search(min(at_once, self.starts - first))
            if len(directions.independent(samples)) == samples:
                best = max(best, _best_choice(layer, factor, rows, directions), key=lambda s: s.confirmed)
            if best.confirmed == samples:
                break
        return best


def _best_choice(layer: _Layer, factor: Tensor, rows: Tensor, directions: SparseDirections) -> _Solution:
    """The solution of the directions with the most zeros, or of others with more samples that fit.

    The difference of two samples of one class can have more zeros than either, and is exchanged here.
    """
    samples, banned = directions.samples, set[int]()
    chosen = directions.independent(samples)
    best, fits = _solution(layer, factor, rows, directions.vectors[chosen])
    while best.confirmed < samples:
        trials = []
        for number in (chosen[i] for i in range(len(chosen)) if not fits[i]):
            other = directions.independent(samples, banned | {number})
            if len(other) == samples:
                trials.append((*_solution(layer, factor, rows, directions.vectors[other]), other, number))
        better = max(trials, key=lambda trial: trial[0].confirmed, default=None)
        if better is None or better[0].confirmed <= best.confirmed:
            break
        best, fits, chosen, number = better
        banned.add(number)
    return best


def _solution(
    layer: _Layer, factor: Tensor, rows: Tensor, directions: Tensor
) -> tuple[_Solution, list[bool]]:
    """The samples for estimates of Q's columns, and which of them fit their gradient."""
    # Δ = L Q diag(s) and gb = Δ 1: the lengths s solve L Q s = gb.
    lengths = torch.linalg.lstsq(factor @ directions.T, layer.gb[:, None]).solution[:, 0]
    mixing = directions.T * lengths
    x = torch.linalg.lstsq(mixing, rows).solution.nan_to_num(0.0)
    delta = factor @ mixing
    # The server knows the weights: a unit has a gradient for exactly the samples for which it is active.
    active = x @ layer.weight.T + layer.bias > 0
    has_gradient = (delta.abs() > _ZERO * delta.abs().amax(0)).T
    agreement = ((active == has_gradient) | ~layer.alive).double().mean(1)
    fits = (agreement > _AGREEMENT).tolist()
    return _Solution(x, sum(fits)), fits
