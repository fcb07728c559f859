"""No defence, said out loud: the raw gradient leaves."""

from dataclasses import dataclass
from typing import ClassVar

from refiner.core.gradients import Gradients
from refiner.core.noise import NoiseSource
from refiner.defenses.base import GradientTransform


@dataclass(frozen=True)
class NoDefense(GradientTransform):
    """Uploads the gradient of the raw data: the undefended case, to compare with.

    >>> import torch
    >>> from refiner.core import Task, gradients
    >>> x, y = torch.rand(3, 4), torch.tensor([0, 1, 1])
    >>> task = Task(torch.nn.Linear(4, 2), example=x)
    >>> update = NoDefense().protect(task, x, y)
    >>> torch.equal(update.tensors["weight"], gradients(task, x[None], y[None])["weight"])
    True
    """

    name: ClassVar[str] = "none"
    cost: ClassVar[str] = "nothing"

    def guarantee(self) -> str:
        """None at all."""
        return "none: the raw gradient leaves"

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        """The gradient as it is."""
        return gradient
