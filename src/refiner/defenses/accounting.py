"""What clipped samples and noise prove: ε by the accountant of Google's dp-accounting, an extra."""

from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from refiner import checks
from refiner.defenses.base import Defense
from refiner.defenses.chain import Chain
from refiner.defenses.dp import DPGaussian, DPLaplace
from refiner.errors import RefinerError, SettingError

ASSUMPTIONS = (
    "adjacent data differ by one sample that is added or removed",
    "every sample is in every batch by a chance of its own, sampling_rate (Poisson sampling; "
    "batches of a fixed size or from a shuffled epoch are not drawn so)",
    "the sum is divided by a number that no sample changes, and the drawn size of a batch stays secret "
    "(protect divides by that size, and an Update tells it)",
    "numbers are real (what their rounding tells is not counted)",
)
"""Under which an ε is proven; each can fail in practice."""


@dataclass(frozen=True)
class PrivacyBound:
    """(ε, δ)-differential privacy of all uploads together, for one sample of one client."""

    epsilon: float
    delta: float
    steps: int
    sampling_rate: float
    mechanism: str
    """Which noise, its scale on the sum of clipped gradients in units of the clip, and who counted."""
    assumptions: tuple[str, ...] = ASSUMPTIONS

    def __str__(self) -> str:
        found = f"ε = {self.epsilon:.4g} at δ = {self.delta:g} after {self.steps} uploads"
        how = f"at sampling rate {self.sampling_rate:g} ({self.mechanism})"
        return f"{found} {how}; proven only if: " + "; ".join(self.assumptions)


def dp_epsilon(defense: Defense, *, steps: int, sampling_rate: float, delta: float) -> PrivacyBound:
    """ε of `steps` uploads by a `DPGaussian` or `DPLaplace` with `per_sample`, each of a new Poisson sample.

    It assumes that every sample of the client is in every batch with probability `sampling_rate`, on its own.
    A batch of a fixed size, or from a shuffled epoch, is not drawn so: then this ε is not proven. What else
    is assumed stands in `ASSUMPTIONS` and in what is returned.

    The noise on the mean has the scale magnitude · C / B, which is `magnitude` times C on the sum. C is the
    most that a sample adds to the sum, in L2 for Gaussian and in L1 for Laplace noise. So `magnitude` is the
    noise multiplier where adjacent data differ by one sample that is added or removed. The worst sample, for
    Laplace noise too, has all of its C in one entry; the accountant counts that one. A chain has the ε of its
    first part: the others see only what that part made.

    >>> private = DPGaussian(magnitude=1.0, per_sample=True)
    >>> round(dp_epsilon(private, steps=1000, sampling_rate=0.01, delta=1e-5).epsilon, 2)
    1.83
    >>> dp_epsilon(DPGaussian(), steps=1000, sampling_rate=0.01, delta=1e-5)
    Traceback (most recent call last):
    refiner.errors.SettingError: dp-gaussian: there is no ε to count: none: the clip bounds ...
    """
    checks.integer("steps", steps, 1)
    checks.number("sampling_rate", sampling_rate, 0, 1, above=True)
    if checks.number("delta", delta, 0, 1, above=True) == 1:
        raise checks.wrong("delta", delta, "a number in (0, 1)")
    if isinstance(defense, Chain):
        defense = defense.parts[0]
    if not isinstance(defense, DPGaussian | DPLaplace):
        raise SettingError(f"{_name(defense)}: there is no ε to count: it is no DPGaussian or DPLaplace")
    if not defense.proves:
        raise SettingError(f"{defense.name}: there is no ε to count: {defense.guarantee()}")
    multiplier = defense.magnitude
    library = _library()
    if isinstance(defense, DPGaussian):
        kind, event, loss = "Gaussian", library.GaussianDpEvent(multiplier), multiplier**-2
    else:
        kind, event, loss = "Laplace", library.LaplaceDpEvent(multiplier), 1 / multiplier
    # Steps in proportion to the loss of one upload keep the memory bounded; they round ε up, never down.
    accountant = library.pld.PLDAccountant(
        library.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4 * max(1.0, loss)
    )
    accountant.compose(library.PoissonSampledDpEvent(sampling_rate, event), steps)
    told = f"{kind} noise, multiplier {multiplier:g}, counted by dp-accounting {version('dp-accounting')}"
    return PrivacyBound(float(accountant.get_epsilon(delta)), delta, steps, sampling_rate, told)


def _library() -> ModuleType:
    try:
        return import_module("dp_accounting")
    except ImportError:
        raise RefinerError("dp_epsilon needs dp-accounting: pip install 'refiner[dp]'") from None


def _name(defense: object) -> str:
    return defense.name if isinstance(defense, Defense) else type(defense).__name__
