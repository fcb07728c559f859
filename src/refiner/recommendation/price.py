"""What a defence costs: the error of its uploads at the real batch size, their time and their size."""

from dataclasses import dataclass

from torch import Tensor

from refiner.audit.upload_cost import measure_upload_cost
from refiner.core.task import Task
from refiner.defenses import Defense

LARGE_ERROR = 0.7
"""From this gradient error on, uploads may not train the model; only a training shows that they do.

With a relative error e < 1 the angle between upload and gradient is at most arcsin e: below 0.7 it is less
than 45°, so that an upload points more along the gradient than across it. An empty upload has an error of 1.
"""


@dataclass(frozen=True)
class Price:
    """The price of a defence."""

    gradient_error: float
    """‖upload − gradient‖ / ‖gradient‖, mean over batches of the real size."""
    slowdown: float
    """The time of an upload in multiples of an undefended one."""
    upload_bytes: int | None
    """The size of a compressed upload; None if unknown."""
    pmm: float | None = None
    """Accuracy after a short training, in percent of the undefended one; None if it was not measured."""

    @property
    def may_not_train(self) -> bool:
        """Whether the gradient error is large, and no training has shown that the uploads teach anything.

        >>> Price(0.98, 1.0, None).may_not_train, Price(0.98, 1.0, None, pmm=97.0).may_not_train
        (True, False)
        """
        return self.pmm is None and self.gradient_error >= LARGE_ERROR

    @property
    def error_text(self) -> str:
        """The gradient error with two digits.

        >>> Price(0.123, 1.0, None).error_text, Price(280.4, 1.0, None).error_text
        ('0.12', '280')
        """
        error = self.gradient_error
        return f"{error:,.0f}" if error >= 100 else f"{error:.2g}"


def measure_price(task: Task, defense: Defense, x: Tensor, y: Tensor, seed: int) -> Price:
    """Return the price of a defence, without a training.

    Args:
        task: The model and its loss.
        defense: The defence.
        x: Batches of the real size, `[V, B, *input]`.
        y: Their labels `[V, B]`.
        seed: The seed of the defence's noise.

    Returns:
        The price. Its `slowdown` varies from run to run.

    >>> import torch
    >>> from refiner.defenses import Pruning
    >>> task = Task(torch.nn.Linear(4, 2), example=torch.rand(1, 4))
    >>> x, y = torch.rand(1, 8, 4), torch.zeros(1, 8, dtype=torch.long)
    >>> price = measure_price(task, Pruning(rate=0.5), x, y, seed=0)
    >>> 0 < price.gradient_error < 1
    True
    """
    uploaded = defense.protect(task, x, y, seed=seed).flat()
    cost = measure_upload_cost(task, defense, x, y, uploaded, seed=seed)
    return Price(cost.gradient_error, cost.relative_time, defense.wire_bytes(task.shapes))
