"""iDLG (Zhao et al. 2020): the label from the last layer, then Deep Leakage's match by L-BFGS."""

from dataclasses import dataclass
from typing import ClassVar

from refiner import checks
from refiner.attacks.distance import Distance
from refiner.attacks.matching import Matching
from refiner.attacks.parametrisation import Pixels
from refiner.attacks.preset import MatchingAttack
from refiner.core.lbfgs import LBFGS

# PyTorch's L-BFGS takes up to 20 steps of its own for each that a caller counts.
_STEPS_EACH = 20


@dataclass(frozen=True)
class IDLG(MatchingAttack):
    """Squared Euclidean distance, no prior.

    The distance is taken relative to the seen gradient's length: the minimum is the same, and the first step
    of L-BFGS, whose size depends on the slope's, does not end below what a float32 can tell.

    >>> IDLG().engine().iterations
    6000
    """

    name: ClassVar[str] = "idlg"

    iterations: int = 300
    """As PyTorch counts them: each is up to 20 steps."""
    lr: float = 1.0
    history: int = 20
    restarts: int = 1
    input_range: tuple[float, float] = (0.0, 1.0)

    def engine(self) -> Matching:
        """The attack as the engine runs it."""
        return Matching(
            Distance("relative"),
            (),
            LBFGS(self.lr, self.history),
            checks.integer("iterations", self.iterations, 1) * _STEPS_EACH,
            restarts=self.restarts,
            parametrisation=Pixels.over(self.input_range, bounded=False),
        )
