"""`Upload` and `Protection`: the results of a defence."""

from dataclasses import dataclass

from torch import Tensor

from refiner.core.gradients import Gradients
from refiner.core.update import Update


@dataclass(frozen=True)
class Upload:
    """What `Defense.compute_upload` returns: protected gradients, and the robust data they belong to."""

    gradients: Gradients
    """Name → `[V, *shape]`."""
    robust: Tensor | None = None
    """`[V, B, *input]` for a defence that crafts robust data, else None."""
    scores: Tensor | None = None
    """The model's scores `[V, B, classes]` of the real data, if the defence has computed them anyway."""


@dataclass(frozen=True)
class Protection:
    """The result of `Defense.protection`."""

    update: Update
    """What the client uploads."""
    robust: Tensor | None
    """Robust data `[V, B, *input]`, None if the defence crafts none. It must not leave the client."""
    scores: Tensor | None = None
    """Scores `[V, B, classes]` of the real data, if it computed them. They must not leave the client."""
