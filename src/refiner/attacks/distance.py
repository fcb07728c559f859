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
    without: str | None = None
    """A layer that doesn't count, be it named in `layers` or not."""

    def __post_init__(self) -> None:
        checks.choice("distance", self.kind, DISTANCES)
        if self.without is not None and not isinstance(self.without, str):
            raise checks.wrong("without", self.without, "the name of a layer")
        for name, weight in (self.layers or {}).items():
            checks.number(f"weight of layer {name}", weight, 0, above=True)

    def over(self, task: Task) -> "Measure":
        """The distance for a task's gradients."""
        if self.layers is None and self.without is None:
            return Measure(self.kind, None)
        known = [layer.name for layer in task.layers]
        for field, names in (("layers", self.layers or ()), ("without", (self.without,))):
            unknown = [name for name in names if name is not None and name not in known]
            if unknown:
                raise SettingError(f"{field}: {unknown[0]!r} is none of {', '.join(known)}")
        chosen = dict.fromkeys(known, 1.0) if self.layers is None else self.layers
        counted = {name: weight for name, weight in chosen.items() if name != self.without}
        if not counted:
            raise SettingError(f"without = {self.without!r}: no layer is left to match")
        weights = [
            torch.full((sum(task.shapes[p].numel() for p in layer.parameters),), counted.get(layer.name, 0.0))
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
