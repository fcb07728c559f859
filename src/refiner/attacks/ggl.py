"""GGL (Li et al. 2022): search in the latent space of a generator that knows what images look like."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from refiner.attacks.distance import Distance
from refiner.attacks.matching import Matching, decays
from refiner.attacks.parametrisation import Latent, Painter
from refiner.attacks.preset import MatchingAttack
from refiner.attacks.priors import LatentGaussian
from refiner.attacks.threat import Grant
from refiner.core.optim import Adam


@dataclass(frozen=True)
class GGL(MatchingAttack):
    """Euclidean distance, latents kept near a standard normal.

    >>> GGL(iterations=100).needs
    frozenset({'generator'})
    """

    name: ClassVar[str] = "ggl"
    needs: ClassVar[frozenset[Grant]] = frozenset({"generator"})

    iterations: int = 4000
    lr: float = 0.1
    decayed: bool = True
    divergence: float = 1e-3
    """Weight of the latents' divergence from a standard normal."""
    restarts: int = 1
    generator: Painter | str | None = field(default=None, repr=False, compare=False)
    """One on the model's device, or a file that `refiner gan train` wrote; None for refiner's own."""

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """As the paper's attack table has it: Adam 0.01, 4,000 iterations."""
        return cls(**{"lr": 0.01, "decayed": False, **changes})

    def settings(self) -> dict[str, object]:
        """The settings by name, the generator by its size."""
        chosen = self.generator
        shown = chosen if chosen is None or isinstance(chosen, str) else f"latent {chosen.latent}"
        return {**super().settings(), "generator": shown}

    def engine(self) -> Matching:
        """The attack as the engine runs it."""
        return Matching(
            Distance("relative"),
            (LatentGaussian(self.divergence),),
            Adam(lr=self.lr),
            self.iterations,
            decays(self.decayed),
            self.restarts,
            Latent(self.generator),
        )
