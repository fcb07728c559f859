"""An attack that is nothing but a choice of the engine's parts."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from refiner.attacks.base import Attack, Reconstruction, Run
from refiner.attacks.labels import infer_labels
from refiner.attacks.matching import Matching
from refiner.attacks.observation import Observation
from refiner.attacks.threat import ThreatModel
from refiner.core.task import Task


@dataclass(frozen=True)
class MatchingAttack(Attack):
    """Labels first, where they are not granted; then the engine."""

    def __post_init__(self) -> None:
        # Wrong settings are refused now, not when the attack is run.
        self.engine()

    @abstractmethod
    def engine(self) -> Matching:
        """The attack as the engine runs it."""

    def check(self, task: Task) -> None:
        """Refuse a task whose images the attack can't make."""
        self.engine().parametrisation.check(task)

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """Those by which the images are made."""
        return self.engine().parametrisation.networks(task)

    def _rebuild(self, observations: list[Observation], granted: ThreatModel, run: Run) -> Reconstruction:
        engine, labels = self._ready(observations, granted)
        return engine.run(observations, labels, run)

    def _ready(self, observations: list[Observation], granted: ThreatModel) -> tuple[Matching, Tensor]:
        """The engine, and the labels `[V, B]` that it is given."""
        given = observations[0].labels
        labels = given if granted.labels and given is not None else infer_labels(*observations)
        return self.engine(), labels
