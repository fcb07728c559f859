"""No defence, said out loud: the raw gradient leaves."""

from dataclasses import dataclass
from typing import ClassVar

from refiner.core.gradients import Gradients, gradients
from refiner.core.task import Task
from refiner.defenses.base import Batch, Defense


@dataclass(frozen=True)
class NoDefense(Defense):
    """Uploads the gradient of the raw data: the undefended case, to compare with."""

    name: ClassVar[str] = "none"

    def _upload(self, task: Task, batch: Batch) -> Gradients:
        return gradients(task, batch.x, batch.y)
