"""Trap weights: random units in front of the model, each active for few images of a batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.changed_model.front_attack import FrontAttack
from refiner.attacks.changed_model.front_module import ReadableUnits


class TrapModule(ReadableUnits):
    """ReLU units with random weights, the negative ones larger than the positive ones."""


@dataclass(frozen=True)
class TrapWeights(FrontAttack):
    """Reads images that alone activate a unit; the server changes the model, and needs no statistics.

    Half of a unit's weights are negative, and the positive ones are smaller by a factor, so that it is active
    for few images. An image that alone activates several units is found in each of them: what is found most
    often is returned, without any look at the truth.

    >>> from refiner import LeNet, Task
    >>> task = TrapWeights(units=64).changed_task(Task(LeNet(), example=torch.rand(1, 3, 32, 32)), samples=4)
    >>> task.shapes["front.encoder.weight"]
    torch.Size([64, 3072])
    """

    name: ClassVar[str] = "trap-weights"
    reference: ClassVar[str] = (
        "Boenisch, Dziedzic, Schuster, Shamsabadi, Shumailov and Papernot, When the Curious Abandon Honesty: "
        "Federated Learning Is Not Private, EuroS&P 2023"
    )
    module: ClassVar[type[ReadableUnits]] = TrapModule

    units: int = 1024
    """The units of the layer in front of the model."""
    factor: float = 0.97
    """The positive weights in terms of the negative ones: the smaller, the fewer images activate a unit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("units", self.units, 1)
        checks.number("factor", self.factor, 0, 1, above=True)

    def front(self, input_shape: tuple[int, ...], samples: int) -> ReadableUnits:
        """Return the units for inputs of a shape; they are the same for all batch sizes."""
        inputs = math.prod(input_shape)
        generator = torch.Generator().manual_seed(0)
        sizes = torch.randn(self.units, inputs // 2, generator=generator).abs() / inputs
        rest = torch.zeros(self.units, inputs % 2)
        ordered = torch.cat([-sizes, self.factor * sizes, rest], dim=1)
        order = torch.rand(self.units, inputs, generator=generator).argsort(1)
        weight, bias = ordered.gather(1, order), torch.zeros(self.units)
        return TrapModule(input_shape, weight, bias, self.scale, bounded=False)

    def read(
        self, front: ReadableUnits, gradients: Mapping[str, Tensor], samples: int
    ) -> tuple[Tensor, Tensor]:
        """Return the images that most units agree on, and the share of units that no other confirms.

        Args:
            front: The module in front of the model.
            gradients: The uploads by parameter.
            samples: The batch size.
        """
        weight, bias = (gradients[f"front.encoder.{name}"] for name in ("weight", "bias"))
        found = [_most_confirmed(w, b, samples, self.input_range) for w, b in zip(weight, bias, strict=True)]
        images, alone = zip(*found, strict=True)
        return torch.stack(images), torch.tensor(alone, device=weight.device)


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
