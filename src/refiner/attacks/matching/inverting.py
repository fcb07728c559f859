"""Inverting Gradients: cosine distance, total variation, signed Adam."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from refiner import checks
from refiner.attacks.matching.distance import Distance
from refiner.attacks.matching.gradient_matching import GradientMatching, decay_fractions
from refiner.attacks.matching.matching_attack import MatchingAttack
from refiner.attacks.matching.parametrisation import Pixels
from refiner.attacks.matching.priors import TotalVariation
from refiner.core.input_range import UNIT_RANGE, InputRange
from refiner.core.optim import Adam, SignedAdam
from refiner.core.task import Task


@dataclass(frozen=True)
class InvertingGradients(MatchingAttack):
    """Cosine distance between gradients, and total variation as the prior.

    Geiping, Bauermeister, Dröge and Moeller, "Inverting Gradients – How easy is it to break privacy in
    federated learning?", NeurIPS 2020.

    >>> InvertingGradients(iterations=100).name
    'inverting'
    """

    name: ClassVar[str] = "inverting"
    reference: ClassVar[str] = (
        "Geiping, Bauermeister, Dröge and Moeller, Inverting Gradients – How easy is it to break privacy in "
        "federated learning?, NeurIPS 2020"
    )

    iterations: int = 4000
    """Steps of Adam."""
    lr: float = 0.1
    """Learning rate of Adam."""
    signed: bool = True
    """Whether Adam gets the sign of the gradient, as in the authors' code."""
    decayed: bool = True
    """Whether the learning rate is divided by ten after 3/8, 5/8 and 7/8 of the iterations."""
    total_variation: float = 1e-4
    """Weight of the prior."""
    restarts: int = 1
    """Guesses for each victim."""
    input_range: InputRange = UNIT_RANGE
    """The lowest and the highest value of a pixel, or those of every channel: `((l1, …), (h1, …))`."""
    without: str | None = None
    """A layer whose gradient is ignored, as the last linear one against Soteria (Balunović et al., "Bayesian
    Framework for Gradient Leakage", ICLR 2022)."""

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return the attack as in the Refiner paper's attack table: Adam 0.01, 4,000 iterations.

        Args:
            changes: Settings to set differently.

        Returns:
            The attack.
        """
        return cls(**{"lr": 0.01, "signed": False, "decayed": False, **changes})

    def check(self, task: Task) -> None:
        """Raise if the task has no layer called `without`."""
        super().check(task)
        self.matching().distance.for_task(task)

    def matching(self) -> GradientMatching:
        """Return the matching that the settings describe."""
        checks.flag("signed", self.signed)
        return GradientMatching(
            Distance("cosine", without=self.without),
            (TotalVariation(self.total_variation),),
            (SignedAdam if self.signed else Adam)(lr=self.lr),
            self.iterations,
            decay_fractions(self.decayed),
            self.restarts,
            Pixels.from_range(self.input_range),
        )
