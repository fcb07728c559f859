"""Distances between the gradient of a guess and the observed gradient."""

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
    """A distance between gradients: squared Euclidean, the same relative to the observed norm, or cosine.

    Args:
        kind: One of `DISTANCES`.
        layers: Weights by layer name; a layer without one is ignored. None gives all layers weight 1.
        without: A layer to ignore, whether `layers` names it or not.

    >>> from refiner.models import LeNet
    >>> distance = Distance("cosine").for_task(Task(LeNet(), example=torch.rand(2, 3, 32, 32)))
    >>> g = torch.rand(2, 15826)
    >>> [abs(float(v)) < 1e-5 for v in distance(g, 2 * g)]
    [True, True]
    """

    kind: str = "euclidean"
    layers: Mapping[str, float] | None = None
    without: str | None = None

    def __post_init__(self) -> None:
        checks.choice("distance", self.kind, DISTANCES)
        if self.without is not None and not isinstance(self.without, str):
            raise checks.wrong("without", self.without, "the name of a layer")
        for name, weight in (self.layers or {}).items():
            checks.number(f"weight of layer {name}", weight, 0, above=True)

    def for_task(self, task: Task) -> "TaskDistance":
        """Return the distance for the gradients of `task`.

        Args:
            task: The model whose layers the weights are for.

        Returns:
            A function of two flat gradients `[V, N]` that returns `[V]`.

        Raises:
            SettingError: A named layer does not exist, or no layer is left.
        """
        if self.layers is None and self.without is None:
            return TaskDistance(self.kind, None)
        layer_names = [layer.name for layer in task.layers]
        for field, names in (("layers", self.layers or ()), ("without", (self.without,))):
            unknown = [name for name in names if name is not None and name not in layer_names]
            if unknown:
                expected = f"one of {', '.join(layer_names)}"
                raise SettingError(field=field, value=unknown[0], expected=expected)
        weights = dict.fromkeys(layer_names, 1.0) if self.layers is None else self.layers
        weights = {name: weight for name, weight in weights.items() if name != self.without}
        if not weights:
            raise checks.wrong("without", self.without, "at least one other layer to match")
        weight_vectors = [
            torch.full((sum(task.shapes[p].numel() for p in layer.parameters),), weights.get(layer.name, 0.0))
            for layer in task.layers
        ]
        parameter = next(iter(task.parameters().values()))
        return TaskDistance(self.kind, torch.cat(weight_vectors).to(parameter))


@dataclass(frozen=True, eq=False)
class TaskDistance:
    """A distance `[V]` between flat gradients `[V, N]` of one task."""

    kind: str
    weight: Tensor | None
    """A factor for every parameter, `[N]`; None for 1."""

    def __call__(self, gradient: Tensor, observed: Tensor) -> Tensor:
        """Return the distance of each victim's `gradient` to the `observed` one."""
        if self.weight is not None:
            gradient, observed = gradient * self.weight, observed * self.weight
        if self.kind != "cosine":
            squared = (gradient - observed).square().sum(1)
            if self.kind == "euclidean":
                return squared
            return squared / observed.square().sum(1).clamp_min(_TINY)
        inner = (gradient * observed).sum(1)
        return 1 - inner / (_norm(gradient) * _norm(observed)).clamp_min(_TINY)


def _norm(g: Tensor) -> Tensor:
    # Not `torch.norm`: its derivative at zero is NaN.
    return (g.square().sum(1) + _TINY).sqrt()
