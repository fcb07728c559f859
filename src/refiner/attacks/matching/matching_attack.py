"""The base class of attacks that are a choice of distance, priors, optimizer and parametrisation."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from refiner.attacks.base import Attack
from refiner.attacks.label_inference import known_labels
from refiner.attacks.matching.gradient_matching import GradientMatching
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.threat_model import ThreatModel
from refiner.core.task import Task


@dataclass(frozen=True)
class MatchingAttack(Attack):
    """An attack by gradient matching; labels that are not granted are inferred first.

    A subclass overrides `matching`, which turns its settings into a `GradientMatching`; that validates the
    settings when the attack is made. It may override `prepare` to choose the labels in another way.
    """

    def __post_init__(self) -> None:
        # Raises for wrong settings now, not when the attack is run.
        self.matching()

    @abstractmethod
    def matching(self) -> GradientMatching:
        """Return the distance, priors, optimizer and parametrisation that the settings describe."""

    def check(self, task: Task) -> None:
        """Raise if the parametrisation can't produce the task's inputs.

        Args:
            task: The model and its loss.
        """
        self.matching().parametrisation.check(task)

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """Return the networks of the parametrisation.

        Args:
            task: The model and its loss.

        Returns:
            The networks by name.
        """
        return self.matching().parametrisation.networks(task)

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Reconstruct the batches by gradient matching.

        Args:
            observations: One or more uploads of the same victims.
            threat: The capabilities granted.
            options: Seed, chunk and the like.

        Returns:
            A reconstruction of every victim.
        """
        matching, labels = self.prepare(observations, threat)
        return matching.run(observations, labels, options)

    def prepare(
        self, observations: list[Observation], threat: ThreatModel
    ) -> tuple[GradientMatching, Tensor]:
        """Return the matching to run and the labels: the granted ones, or else inferred ones.

        Args:
            observations: One or more uploads of the same victims.
            threat: The capabilities granted.

        Returns:
            The matching, and the labels `[V, B]`.
        """
        labels = known_labels(observations, threat)
        return self.matching(), labels
