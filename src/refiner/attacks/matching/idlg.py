"""iDLG: the label from the last layer's gradient, then gradient matching by L-BFGS."""

from dataclasses import dataclass
from typing import ClassVar

from refiner import checks
from refiner.attacks.matching.distance import Distance
from refiner.attacks.matching.gradient_matching import GradientMatching
from refiner.attacks.matching.matching_attack import MatchingAttack
from refiner.attacks.matching.parametrisation import Pixels
from refiner.core.input_range import UNIT_RANGE, InputRange
from refiner.core.lbfgs import LBFGS

# PyTorch's L-BFGS makes up to 20 inner steps in each call of `step`, which the papers count as one iteration.
_STEPS_PER_ITERATION = 20


@dataclass(frozen=True)
class IDLG(MatchingAttack):
    """Squared Euclidean distance, no prior, inferred labels.

    Zhao, Mopuri and Bilen, "iDLG: Improved Deep Leakage from Gradients", arXiv:2001.02610, 2020.

    The distance is relative to the norm of the observed gradient. The minimum is the same, but the first step
    of L-BFGS, whose size depends on that of the gradient, does not vanish in float32.

    >>> IDLG().matching().iterations
    6000
    """

    name: ClassVar[str] = "idlg"
    reference: ClassVar[str] = (
        "Zhao, Mopuri and Bilen, iDLG: Improved Deep Leakage from Gradients, arXiv:2001.02610, 2020"
    )

    iterations: int = 300
    """As PyTorch counts them: each is up to 20 steps of L-BFGS."""
    lr: float = 1.0
    """Learning rate of L-BFGS."""
    history: int = 20
    """Past steps that L-BFGS stores."""
    restarts: int = 1
    """Guesses for each victim."""
    input_range: InputRange = UNIT_RANGE
    """The lowest and the highest value of a pixel, or those of every channel: `((l1, …), (h1, …))`."""

    def matching(self) -> GradientMatching:
        """Return the matching that the settings describe."""
        return GradientMatching(
            Distance("relative"),
            (),
            LBFGS(self.lr, self.history),
            checks.integer("iterations", self.iterations, 1) * _STEPS_PER_ITERATION,
            restarts=self.restarts,
            parametrisation=Pixels.from_range(self.input_range, bounded=False),
        )
