"""No defence: the raw gradient is uploaded."""

from dataclasses import dataclass
from typing import ClassVar

from refiner.core.gradients import Gradients
from refiner.core.noise import NoiseSource
from refiner.defenses.gradient_transform import GradientTransform
from refiner.defenses.wire_format import WireFormat


@dataclass(frozen=True)
class NoDefense(GradientTransform):
    """Uploads the gradient of the raw data: the undefended baseline.

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
        """Nothing is proven."""
        return "none: the raw gradient is uploaded"

    def wire_format(self, incoming: WireFormat) -> WireFormat:
        """That of the gradient it receives."""
        return incoming

    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        """The gradient unchanged."""
        return gradient
