"""The base class of attacks that put a module in front of the model and read images off its gradient."""

import time
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.base import Attack
from refiner.attacks.changed_model.front_module import FrontedModel, ReadableUnits, put_in_front
from refiner.attacks.label_inference import known_labels
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.threat_model import Capability, ThreatModel
from refiner.core.input_range import UNIT_RANGE, check_scalar_range
from refiner.core.task import Task
from refiner.errors import DataError


@dataclass(frozen=True)
class FrontAttack(Attack):
    """An attack of a server that changes the model: a module in front of it makes gradients readable.

    A subclass sets `module`, the class of its modules, makes one in `front`, and implements `read`.
    """

    needs: ClassVar[frozenset[Capability]] = frozenset({"changed_model"})
    module: ClassVar[type[ReadableUnits]]

    scale: float = 1.0
    """The length of what an active unit adds to the input: the larger, the larger is its gradient."""
    input_range: tuple[float, float] = UNIT_RANGE
    """The range to which reconstructions are clipped."""

    def __post_init__(self) -> None:
        checks.number("scale", self.scale, 0, 1e6, above=True)
        check_scalar_range(self.input_range)

    @abstractmethod
    def front(self, input_shape: tuple[int, ...], samples: int) -> ReadableUnits:
        """Return the module for inputs of a shape and observations of so many samples."""

    @abstractmethod
    def read(
        self, front: ReadableUnits, gradients: Mapping[str, Tensor], samples: int
    ) -> tuple[Tensor, Tensor]:
        """Return images `[V, samples, inputs]` and an objective `[V]`.

        Args:
            front: The module in front of the model.
            gradients: The uploads by parameter, `[V, *shape]` each.
            samples: The samples of every upload.
        """

    def changed_task(self, task: Task, samples: int) -> Task:
        """Return the task with the module in front of the model.

        Args:
            task: The model and its loss.
            samples: The samples of one observation.

        Returns:
            The task that clients receive.

        Raises:
            DataError: Nothing can be put in front of the model.
        """
        self.check(task)
        return put_in_front(task, self.front(task.input_shape, samples))

    def front_of(self, task: Task) -> ReadableUnits:
        """Return the module that this attack put in front of a model.

        Args:
            task: The task of an observation.

        Returns:
            The module.

        Raises:
            DataError: The uploads were made with another model.
        """
        front = task.model.front if isinstance(task.model, FrontedModel) else None
        if not isinstance(front, self.module):
            raise DataError(
                field="model",
                value=type(task.model).__name__,
                expected=f"the model that {self.name} sends, of its changed_task",
            )
        return front

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Read the images off the gradient.

        Args:
            observations: One or more uploads of the same victims; of several the mean is read.
            threat: The capabilities granted.
            options: Not used: nothing is random or iterated.

        Returns:
            The images, found without any look at the truth.

        Raises:
            DataError: The uploads were made with another model.
        """
        start = time.perf_counter()
        first = observations[0]
        front = self.front_of(first.task)
        named = first.task.unflatten(torch.stack([o.gradient for o in observations]).mean(0))
        x, objective = self.read(front, named, first.samples)
        x = x.view(-1, first.samples, *first.task.input_shape)
        labels = known_labels(observations, threat).to(x.device)
        diverged = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        return Reconstruction(x, labels, objective, diverged, time.perf_counter() - start)
