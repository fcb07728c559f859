"""Inverting Gradients (Geiping et al. 2020): the angle between gradients, smooth images, signed Adam."""

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from refiner import checks
from refiner.attacks.distance import Distance
from refiner.attacks.matching import Matching, decays
from refiner.attacks.parametrisation import Pixels
from refiner.attacks.preset import MatchingAttack
from refiner.attacks.priors import TotalVariation
from refiner.core.optim import Adam, SignedAdam
from refiner.core.task import Task


@dataclass(frozen=True)
class InvertingGradients(MatchingAttack):
    """Cosine distance and total variation.

    >>> InvertingGradients(iterations=100).name
    'inverting'
    """

    name: ClassVar[str] = "inverting"

    iterations: int = 4000
    lr: float = 0.1
    signed: bool = True
    """Feed Adam the sign of the slope, as the authors do and the paper's table does not say."""
    decayed: bool = True
    """Divide the learning rate by ten after 3/8, 5/8 and 7/8 of the iterations."""
    total_variation: float = 1e-4
    restarts: int = 1
    input_range: tuple[float, float] = (0.0, 1.0)
    without: str | None = None
    """A layer whose gradient is left out, as against Soteria's last linear one (Balunović et al. 2022)."""

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """As the paper's attack table has it: Adam 0.01, 4,000 iterations."""
        return cls(**{"lr": 0.01, "signed": False, "decayed": False, **changes})

    def check(self, task: Task) -> None:
        """Refuse a task without the layer that is left out, too."""
        super().check(task)
        self.engine().distance.over(task)

    def engine(self) -> Matching:
        """The attack as the engine runs it."""
        checks.flag("signed", self.signed)
        return Matching(
            Distance("cosine", without=self.without),
            (TotalVariation(self.total_variation),),
            (SignedAdam if self.signed else Adam)(lr=self.lr),
            self.iterations,
            decays(self.decayed),
            self.restarts,
            Pixels.over(self.input_range),
        )
