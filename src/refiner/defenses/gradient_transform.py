"""`GradientTransform`: the base class of defences that change a gradient without seeing the data."""

from abc import abstractmethod

from refiner.core.gradients import Gradients, graphed_gradients_and_scores
from refiner.core.noise import NoiseSource
from refiner.core.task import Task
from refiner.defenses.base import Defense
from refiner.defenses.batch import Batch
from refiner.defenses.result import Upload


class GradientTransform(Defense):
    """A defence that changes a gradient without seeing the data; it can follow another in a `Chain`."""

    needs = "gradient"

    @abstractmethod
    def transform(self, gradient: Gradients, noise: NoiseSource, samples: int) -> Gradients:
        """Return the protected gradient: the method that a subclass implements.

        Args:
            gradient: Name → `[V, *shape]`, each the mean over a victim's samples; not to be changed in place.
            noise: The source for all random draws; draws are numbered from `noise.first_victim` on.
            samples: The number of samples per victim.

        Returns:
            Tensors of the same names, shapes and types. Victims are independent of each other.
        """

    def compute_upload(self, task: Task, batch: Batch) -> Upload:
        """The transformed gradient of the raw data."""
        gradient, scores = graphed_gradients_and_scores(task, batch.x, batch.y)
        return Upload(self.transform(gradient, batch.noise, batch.x.shape[1]), scores=scores)
