"""GGL: gradient matching in the latent space of a generator of natural images."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from refiner.attacks.matching.distance import Distance
from refiner.attacks.matching.gradient_matching import GradientMatching, decay_fractions
from refiner.attacks.matching.matching_attack import MatchingAttack
from refiner.attacks.matching.parametrisation import ImageGenerator, Latent
from refiner.attacks.matching.priors import LatentGaussian
from refiner.attacks.threat_model import Capability
from refiner.core.optim import Adam


@dataclass(frozen=True)
class GGL(MatchingAttack):
    """Euclidean distance; the latents stay near a standard normal.

    Li, Zhang, Liu and Liu, "Auditing Privacy Defenses in Federated Learning via Generative Gradient Leakage",
    CVPR 2022. The distance is relative to the norm of the observed gradient.

    >>> GGL(iterations=100).needs
    frozenset({'generator'})
    """

    name: ClassVar[str] = "ggl"
    reference: ClassVar[str] = (
        "Li, Zhang, Liu and Liu, Auditing Privacy Defenses in Federated Learning via Generative Gradient "
        "Leakage, CVPR 2022"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"generator"})

    iterations: int = 4000
    """Steps of Adam."""
    lr: float = 0.1
    """Learning rate of Adam."""
    decayed: bool = True
    """Whether the learning rate is divided by ten after 3/8, 5/8 and 7/8 of the iterations."""
    divergence: float = 1e-3
    """Weight of the latents' divergence from a standard normal."""
    restarts: int = 1
    """Guesses for each victim."""
    generator: ImageGenerator | str | None = field(default=None, repr=False, compare=False)
    """A generator on the model's device, or the path of a file that `refiner gan train` wrote; None for the
    bundled one."""

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return the attack as in the Refiner paper's attack table: Adam 0.01, 4,000 iterations.

        Args:
            changes: Settings to set differently.

        Returns:
            The attack.
        """
        return cls(**{"lr": 0.01, "decayed": False, **changes})

    def settings(self) -> dict[str, object]:
        """Return the settings by name; a generator object is represented by the size of its latents."""
        generator = self.generator
        if generator is None or isinstance(generator, str):
            return {**super().settings(), "generator": generator}
        return {**super().settings(), "generator": f"latent {generator.latent}"}

    def matching(self) -> GradientMatching:
        """Return the matching that the settings describe."""
        return GradientMatching(
            Distance("relative"),
            (LatentGaussian(self.divergence),),
            Adam(lr=self.lr),
            self.iterations,
            decay_fractions(self.decayed),
            self.restarts,
            Latent(self.generator),
        )
