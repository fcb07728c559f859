"""GradInversion: several restarts that must agree, image priors, and batch-norm statistics."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from refiner import checks
from refiner.attacks.matching.distance import Distance
from refiner.attacks.matching.gradient_matching import GradientMatching, decay_fractions
from refiner.attacks.matching.matching_attack import MatchingAttack
from refiner.attacks.matching.parametrisation import Pixels
from refiner.attacks.matching.priors import (
    BatchNormStatistics,
    GroupConsistency,
    Prior,
    SquaredLength,
    TotalVariation,
)
from refiner.attacks.observation import running_statistics
from refiner.attacks.threat_model import Capability
from refiner.core.input_range import UNIT_RANGE, InputRange
from refiner.core.optim import Adam
from refiner.core.task import Task


@dataclass(frozen=True)
class GradInversion(MatchingAttack):
    """Euclidean distance; total variation, squared length, batch-norm statistics, group consistency.

    Yin, Mallya, Vahdat, Alvarez, Kautz and Molchanov, "See through Gradients: Image Batch Recovery via
    GradInversion", CVPR 2021.

    The distance is relative to the norm of the observed gradient, so that one set of weights fits every state
    of a model.

    >>> GradInversion(iterations=100).name
    'gradinversion'
    """

    name: ClassVar[str] = "gradinversion"
    reference: ClassVar[str] = (
        "Yin, Mallya, Vahdat, Alvarez, Kautz and Molchanov, See through Gradients: Image Batch Recovery via "
        "GradInversion, CVPR 2021"
    )

    iterations: int = 4000
    """Steps of Adam."""
    lr: float = 0.1
    """Learning rate of Adam."""
    decayed: bool = True
    """Whether the learning rate is divided by ten after 3/8, 5/8 and 7/8 of the iterations."""
    total_variation: float = 1e-4
    """Weight of the total variation."""
    squared_length: float = 1e-6
    """Weight of the mean squared pixel."""
    statistics: float = 1e-2
    """Weight of the batch-norm statistics. Has an effect only if the model has batch norm whose running
    statistics were updated; the threat model must then grant them."""
    consistency: float = 1e-3
    """Weight of the agreement between restarts. Has an effect only with several of them."""
    restarts: int = 1
    """Guesses for each victim."""
    input_range: InputRange = UNIT_RANGE
    """The lowest and the highest value of a pixel, or those of every channel: `((l1, …), (h1, …))`."""

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return the attack as in the Refiner paper's attack table: Adam 0.01, 4,000 iterations.

        Args:
            changes: Settings to set differently.

        Returns:
            The attack.
        """
        return cls(**{"lr": 0.01, "decayed": False, **changes})

    def matching(self) -> GradientMatching:
        """Return the matching that the settings describe."""
        priors: list[Prior] = [TotalVariation(self.total_variation), SquaredLength(self.squared_length)]
        priors += [BatchNormStatistics(self.statistics)] if self.statistics else []
        consistency = GroupConsistency(self.consistency)
        priors += [consistency] if checks.integer("restarts", self.restarts, 1) > 1 else []
        return GradientMatching(
            Distance("relative"),
            tuple(priors),
            Adam(lr=self.lr),
            self.iterations,
            decay_fractions(self.decayed),
            self.restarts,
            Pixels.from_range(self.input_range),
        )

    def needs_for(self, task: Task) -> frozenset[Capability]:
        """Return the statistics if they have a weight and the model has any.

        Args:
            task: The model and its loss.

        Returns:
            "statistics", or nothing.
        """
        uses_statistics = self.statistics and running_statistics(task.model)
        return frozenset({"statistics"}) if uses_statistics else frozenset()
