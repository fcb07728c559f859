"""A simulator: the defence as an attacker runs it on public images to learn what its uploads reveal.

Attacks import no defence. Who runs an attack, an audit for example, passes the defence in as a function.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from refiner import checks
from refiner.errors import DataError


class SimulatedUploads(NamedTuple):
    """The uploads of V simulated clients."""

    gradients: Sequence[Tensor]
    """One upload `[V, N]` of every client for each of the model's states that the attacker observed."""
    robust: Tensor | None
    """The robust data `[V, B, *input]` of the first upload; None if the defence crafts none."""


@dataclass(frozen=True, eq=False)
class Simulator:
    """Public images, and a function that protects them as the victims' defence would.

    The attacker knows the defence and its settings, but no client's secret: another seed is another secret.

    Args:
        images: Public images `[N, *input]` like the victims', none of them a victim.
        labels: Their labels `[N]`.
        protect: Returns the uploads of clients with batches `x [V, B, *input]` and labels `[V, B]`, with
            noise from the seed.

    Raises:
        DataError: Images and labels do not fit each other.

    >>> import torch
    >>> from refiner import LeNet, NoDefense, Task
    >>> from refiner.attacks import Observation
    >>> images, labels = torch.rand(5, 3, 32, 32), torch.arange(5)
    >>> task = Task(LeNet(), example=images)
    >>> def protect(x, y, seed):
    ...     update = NoDefense().protect(task, x, y, seed=seed)
    ...     return SimulatedUploads([Observation.of(task, update).gradient], None)
    >>> Simulator(images, labels, protect).protect(images[:2, None], labels[:2, None], 0).gradients[0].shape
    torch.Size([2, 15826])
    """

    images: Tensor
    labels: Tensor
    protect: Callable[[Tensor, Tensor, int], SimulatedUploads]

    def __post_init__(self) -> None:
        if not isinstance(self.images, Tensor) or self.images.ndim < 2 or not len(self.images):
            raise checks.wrong("images", self.images, "one or more public images [N, *input]")
        if not isinstance(self.labels, Tensor) or self.labels.shape != self.images.shape[:1]:
            raise DataError(
                field="labels",
                value=list(self.labels.shape) if isinstance(self.labels, Tensor) else self.labels,
                expected=f"[{len(self.images)}], one label for every public image",
            )
