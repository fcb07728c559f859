"""GradInversion (Yin et al. 2021): many seeds at once that must agree, priors, and batch-norm statistics."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from refiner import checks
from refiner.attacks.distance import Distance
from refiner.attacks.matching import Matching, decays
from refiner.attacks.observation import remembered_statistics
from refiner.attacks.parametrisation import Pixels
from refiner.attacks.preset import MatchingAttack
from refiner.attacks.priors import (
    BatchNormStatistics,
    GroupConsistency,
    Prior,
    SquaredLength,
    TotalVariation,
)
from refiner.attacks.threat import Grant
from refiner.core.optim import Adam
from refiner.core.task import Task


@dataclass(frozen=True)
class GradInversion(MatchingAttack):
    """Euclidean distance; total variation, squared length, batch-norm statistics, group consistency.

    The distance is relative to the seen gradient's length: one set of weights fits every state of a model.

    >>> GradInversion(iterations=100).name
    'gradinversion'
    """

    name: ClassVar[str] = "gradinversion"

    iterations: int = 4000
    lr: float = 0.1
    decayed: bool = True
    total_variation: float = 1e-4
    squared_length: float = 1e-6
    statistics: float = 1e-2
    """Has a say only where the model has batch norm; that must be granted."""
    consistency: float = 1e-3
    restarts: int = 1
    input_range: tuple[float, float] = (0.0, 1.0)

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """As the paper's attack table has it: Adam 0.01, 4,000 iterations."""
        return cls(**{"lr": 0.01, "decayed": False, **changes})

    def engine(self) -> Matching:
        """The attack as the engine runs it."""
        priors: list[Prior] = [TotalVariation(self.total_variation), SquaredLength(self.squared_length)]
        priors += [BatchNormStatistics(self.statistics)] if self.statistics else []
        consistency = GroupConsistency(self.consistency)
        priors += [consistency] if checks.integer("restarts", self.restarts, 1) > 1 else []
        return Matching(
            Distance("relative"),
            tuple(priors),
            Adam(lr=self.lr),
            self.iterations,
            decays(self.decayed),
            self.restarts,
            Pixels.over(self.input_range),
        )

    def needed(self, task: Task) -> frozenset[Grant]:
        """The statistics, where the model has any."""
        use = self.statistics and remembered_statistics(task.model)
        return frozenset({"statistics"}) if use else frozenset()
