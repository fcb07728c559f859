"""A simulator: the defence as an attacker runs it on public images to learn what its uploads reveal.

Attacks import no defence. Who runs an attack, an audit for example, passes the defence in as a function.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.core.task import Task
from refiner.errors import DataError


class SimulatedUploads(NamedTuple):
    """The uploads of V simulated clients."""

    gradients: Sequence[Tensor]
    """One upload `[V, N]` of every client for each of the model's states that the attacker observed."""
    robust: Tensor | None
    """The robust data `[V, B, *input]` of the first upload; None if the defence crafts none."""


@dataclass(frozen=True, eq=False)
class KnownDefense:
    """What an attacker knows of the victims' defence beside being able to run it; no client's secret.

    Args:
        settings: Its public settings by name.
        networks: The networks that its uploads depend on, by name.
    """

    settings: Mapping[str, object]
    networks: Mapping[str, nn.Module]


@dataclass(frozen=True, eq=False)
class Simulator:
    """Public images, and a function that protects them as the victims' defence would.

    The attacker knows the defence and its settings, but no client's secret: another seed is another secret.

    Args:
        images: Public images `[N, *input]` like the victims', none of them a victim.
        labels: Their labels `[N]`.
        protect: Returns the uploads of clients with batches `x [V, B, *input]` and labels `[V, B]`, with
            noise from the seed, an integer ≥ 0; on the model's device, whatever device `x` is on.

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

    def check(self, task: Task, least: int = 1, attack: str = "the attack", samples: int = 1) -> None:
        """Raise unless the public images can be protected with `task` and are enough for an attack.

        Args:
            task: The model and its loss.
            least: The fewest images that the attack can learn from.
            attack: The attack's name, for the message.
            samples: The batch size for which so many are needed, for the message.

        Raises:
            DataError: Images of another shape, with NaN, or too few; labels that are no classes of the task.
        """
        check_public_images(task, self.images, self.labels, least, attack, samples)


def check_public_images(
    task: Task, images: Tensor, labels: Tensor, least: int, attack: str, samples: int = 1
) -> None:
    """Raise unless an attack on `task` can learn from labelled public images.

    Args:
        task: The model and its loss.
        images: `[N, *input]`.
        labels: `[N]`.
        least: The fewest images that the attack can learn from.
        attack: The attack's name, for the message.
        samples: The batch size for which so many are needed, for the message.

    Raises:
        DataError: Images of another shape, with NaN, or too few; labels that are no classes of the task.

    >>> task = Task(torch.nn.Linear(4, 3), example=torch.rand(1, 4))
    >>> check_public_images(task, torch.rand(5, 4), torch.tensor([0, 1, 2, 2, 3]), 1, "linear")
    Traceback (most recent call last):
    refiner.errors.DataError: public labels = 3: expected integers in [0, 2], the classes of the model
    """
    if tuple(images.shape[1:]) != tuple(task.input_shape):
        raise DataError(
            field="public images",
            value=list(images.shape[1:]),
            expected=f"images of shape {list(task.input_shape)}, the model's input",
        )
    if not images.is_floating_point() or not bool(images.isfinite().all()):
        raise DataError(field="public images", value=images, expected="finite floats")
    if len(images) < least:
        raise DataError(
            field="public_images",
            value=len(images),
            expected=f"at least {least} public images besides the victims, which {attack} needs to learn from"
            + (f" for batches of {samples}" if samples > 1 else ""),
        )
    expected = f"integers in [0, {task.classes - 1}], the classes of the model"
    if labels.dtype != torch.long:
        raise DataError(field="public labels", value=labels, expected=expected)
    low, high = (int(value) for value in labels.aminmax())
    if low < 0 or high >= task.classes:
        raise DataError(field="public labels", value=low if low < 0 else high, expected=expected)
