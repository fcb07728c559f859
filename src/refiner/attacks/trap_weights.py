"""Trap weights: random units in front of the model, each active for few images of a batch."""

import math
import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.base import Attack, Reconstruction, RunOptions
from refiner.attacks.front_module import ReadableUnits, front_of, put_in_front
from refiner.attacks.label_inference import infer_labels
from refiner.attacks.observation import Observation
from refiner.attacks.threat_model import Capability, ThreatModel
from refiner.core.task import Task


class TrapModule(ReadableUnits):
    """ReLU units with random weights, the negative ones larger than the positive ones."""


@dataclass(frozen=True)
class TrapWeights(Attack):
    """Reads images that alone activate a unit; the server changes the model, and needs no statistics.

    Half of a unit's weights are negative, and the positive ones are smaller by a factor, so that it is active
    for few images. An image that alone activates several units is found in each of them: what is found most
    often is returned, without any look at the truth.

    >>> from refiner import LeNet
    >>> task = TrapWeights(units=64).changed_task(Task(LeNet(), example=torch.rand(1, 3, 32, 32)), samples=4)
    >>> task.shapes["front.encoder.weight"]
    torch.Size([64, 3072])
    """

    name: ClassVar[str] = "trap-weights"
    reference: ClassVar[str] = (
        "Boenisch, Dziedzic, Schuster, Shamsabadi, Shumailov and Papernot, When the Curious Abandon Honesty: "
        "Federated Learning Is Not Private, EuroS&P 2023"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"changed_model"})

    units: int = 1024
    """The units of the layer in front of the model."""
    factor: float = 0.97
    """The positive weights in terms of the negative ones: the smaller, the fewer images activate a unit."""
    scale: float = 1.0
    """The length of what a unit of 1 adds to the input: the larger, the larger is its gradient."""
    input_range: tuple[float, float] = (0.0, 1.0)
    """The range to which reconstructions are clipped."""

    def __post_init__(self) -> None:
        checks.integer("units", self.units, 1)
        checks.number("factor", self.factor, 0, 1, above=True)
        checks.number("scale", self.scale, 0, 1e6, above=True)

    def changed_task(self, task: Task, samples: int) -> Task:
        """Return the task with the units in front of the model.

        Args:
            task: The model and its loss.
            samples: The batch size that the server expects; without effect.

        Returns:
            The task that clients receive.

        Raises:
            DataError: Nothing can be put in front of the model.
        """
        inputs = math.prod(task.input_shape)
        generator = torch.Generator().manual_seed(0)
        sizes = torch.randn(self.units, inputs // 2, generator=generator).abs() / inputs
        rest = torch.zeros(self.units, inputs % 2)
        ordered = torch.cat([-sizes, self.factor * sizes, rest], dim=1)
        order = torch.rand(self.units, inputs, generator=generator).argsort(1)
        module = TrapModule(
            task.input_shape, ordered.gather(1, order), torch.zeros(self.units), self.scale, bounded=False
        )
        return put_in_front(task, module)

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Read the images that most units agree on.

        Args:
            observations: One or more uploads of the same victims; of several the mean is read.
            threat: The capabilities granted.
            options: Not used: nothing is random or iterated.

        Returns:
            The images. The objective is the share of units whose reading no other unit confirms.

        Raises:
            DataError: The uploads were made with another model.
        """
        start = time.perf_counter()
        first = observations[0]
        front_of(first.task, TrapModule, self.name)
        named = first.task.unflatten(torch.stack([o.gradient for o in observations]).mean(0))
        weight, bias = named["front.encoder.weight"], named["front.encoder.bias"]
        found = [
            _most_confirmed(w, b, first.samples, self.input_range) for w, b in zip(weight, bias, strict=True)
        ]
        x = torch.stack([images for images, _ in found]).view(-1, first.samples, *first.task.input_shape)
        objective = torch.tensor([share for _, share in found], device=x.device)
        granted = first.labels
        labels = granted if threat.labels and granted is not None else infer_labels(*observations)
        diverged = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        return Reconstruction(x, labels.to(x.device), objective, diverged, time.perf_counter() - start)


def _most_confirmed(
    weight: Tensor, bias: Tensor, count: int, input_range: tuple[float, float]
) -> tuple[Tensor, float]:
    """The `count` images `[count, inputs]` that most units give, and the share of units alone with theirs."""
    low, high = input_range
    active = bias.abs() > 1e-6 * bias.abs().amax()
    middle = weight.new_full((count, weight.shape[1]), (low + high) / 2)
    readings = (weight[active] / bias[active, None]).nan_to_num(math.inf)
    # A mixture in which some gradients have the opposite sign leaves the range of images.
    margin = 0.01 * (high - low)
    plausible = ((readings > low - margin) & (readings < high + margin)).all(1)
    readings = readings[plausible].clamp(low, high)
    if not len(readings):
        return middle, 1.0
    near = torch.cdist(readings, readings) < 0.01 * (high - low) * math.sqrt(weight.shape[1])
    alone = float((near.sum(1) == 1).float().mean())
    free = torch.ones(len(readings), dtype=torch.bool, device=weight.device)
    for number in range(count):
        votes = (near & free[None] & free[:, None]).sum(1)
        best = int(votes.argmax())
        if not bool(free[best]):
            break
        middle[number] = readings[near[best] & free].mean(0)
        free &= ~near[best]
    return middle, alone
