"""How far the gradient of a guess is from the one that was seen."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from refiner import checks
from refiner.core.task import Task
from refiner.errors import SettingError

DISTANCES = ("euclidean", "relative", "cosine")
_TINY = 1e-30


@dataclass(frozen=True)
class Distance:
    """Squared Euclidean distance, the same relative to the seen gradient's length, or cosine.

    >>> from refiner.models import LeNet
    >>> measure = Distance("cosine").over(Task(LeNet(), example=torch.rand(2, 3, 32, 32)))
    >>> g = torch.rand(2, 15826)
    >>> [abs(float(v)) < 1e-5 for v in measure(g, 2 * g)]
    [True, True]
    """

    kind: str = "euclidean"
    layers: Mapping[str, float] | None = None
    """Weights by the name of the layer; those not named don't count. None counts all alike."""

    def __post_init__(self) -> None:
        checks.choice("distance", self.kind, DISTANCES)
        for name, weight in (self.layers or {}).items():
            checks.number(f"weight of layer {name}", weight, 0, above=True)

    def over(self, task: Task) -> "Measure":
        """The distance for a task's gradients."""
        if self.layers is None:
            return Measure(self.kind, None)
        known = [layer.name for layer in task.layers]
        unknown = [name for name in self.layers if name not in known]
        if unknown:
            raise SettingError(f"layers: {unknown[0]!r} is none of {', '.join(known)}")
        weights = [
            torch.full(
                (sum(task.shapes[p].numel() for p in layer.parameters),), self.layers.get(layer.name, 0.0)
            )
            for layer in task.layers
        ]
        like = next(iter(task.parameters().values()))
        return Measure(self.kind, torch.cat(weights).to(like))


@dataclass(frozen=True, eq=False)
class Measure:
    """A distance of flat gradients `[V, N]`, one number a victim."""

    kind: str
    weight: Tensor | None

    def __call__(self, found: Tensor, seen: Tensor) -> Tensor:
        if self.weight is not None:
            found, seen = found * self.weight, seen * self.weight
        if self.kind != "cosine":
            apart = (found - seen).square().sum(1)
            return apart if self.kind == "euclidean" else apart / seen.square().sum(1).clamp_min(_TINY)
        along = (found * seen).sum(1)
        return 1 - along / (_length(found) * _length(seen)).clamp_min(_TINY)


def _length(g: Tensor) -> Tensor:
    # Not `norm`: its slope at zero is not a number.
    return (g.square().sum(1) + _TINY).sqrt()
