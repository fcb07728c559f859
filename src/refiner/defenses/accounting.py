"""(ε, δ)-differential privacy of DP-SGD, computed by Google's dp-accounting (an extra)."""

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
    "adjacent datasets differ by one sample that is added or removed",
    "every sample is in every batch independently with probability sampling_rate (Poisson sampling; "
    "batches of a fixed size or from a shuffled epoch are not drawn like this)",
    "the sum is divided by a number that does not depend on the samples, and the batch size stays secret "
    "(protect divides by the batch size, and an Update reveals it)",
    "arithmetic is exact (leakage through floating-point rounding is not counted)",
)
"""The assumptions under which ε is proven; each can fail in practice."""


@dataclass(frozen=True)
class PrivacyBound:
    """(ε, δ)-differential privacy of all uploads of a training together, for one sample of one client."""

    epsilon: float
    delta: float
    steps: int
    sampling_rate: float
    mechanism: str
    """The noise, its scale on the sum of clipped gradients in units of the clip, and the accountant."""
    assumptions: tuple[str, ...] = ASSUMPTIONS

    def __str__(self) -> str:
        bound = f"ε = {self.epsilon:.4g} at δ = {self.delta:g} after {self.steps} uploads"
        conditions = f"at sampling rate {self.sampling_rate:g} ({self.mechanism})"
        return f"{bound} {conditions}; proven only if: " + "; ".join(self.assumptions)


def dp_epsilon(defense: Defense, *, steps: int, sampling_rate: float, delta: float) -> PrivacyBound:
    """Return ε of `steps` uploads of a `DPGaussian` or `DPLaplace` with `per_sample=True`.

    The noise on the mean has the scale magnitude · C / B, which is magnitude · C on the sum. C bounds the
    contribution of a sample to the sum, in L2 for Gaussian and in L1 for Laplace noise. So `magnitude` is the
    noise multiplier for datasets that differ by one added or removed sample. The worst case, for Laplace
    noise too, is a sample whose whole contribution C is in one entry; that case is counted.

    Args:
        defense: The defence; for a chain its first part, since the others see only the result of that one.
        steps: The number of uploads, each computed from a new Poisson sample of the client's data.
        sampling_rate: The probability with which each sample is in a batch, in (0, 1]. Batches of a fixed
            size, or from a shuffled epoch, are not Poisson samples: for these this ε is not proven.
        delta: δ, in (0, 1).

    Returns:
        The bound, with the mechanism and the assumptions (`ASSUMPTIONS`) that it rests on.

    Raises:
        SettingError: If an argument is out of range or the defence proves nothing.
        RefinerError: If dp-accounting is not installed.

    >>> private = DPGaussian(magnitude=1.0, per_sample=True)
    >>> round(dp_epsilon(private, steps=1000, sampling_rate=0.01, delta=1e-5).epsilon, 2)
    1.83
    >>> dp_epsilon(DPGaussian(), steps=1000, sampling_rate=0.01, delta=1e-5)
    Traceback (most recent call last):
    refiner.errors.SettingError: dp-gaussian: has no ε: none: the clip bounds ...
    """
    checks.integer("steps", steps, 1)
    checks.number("sampling_rate", sampling_rate, 0, 1, above=True)
    if checks.number("delta", delta, 0, 1, above=True) == 1:
        raise checks.wrong("delta", delta, "a number in (0, 1)")
    if isinstance(defense, Chain):
        defense = defense.parts[0]
    if not isinstance(defense, DPGaussian | DPLaplace):
        name = defense.name if isinstance(defense, Defense) else type(defense).__name__
        raise SettingError(
            f"{name}: has no ε: it is neither DPGaussian nor DPLaplace",
            field="defense",
            expected="a DPGaussian or DPLaplace",
        )
    if not defense.has_guarantee:
        raise SettingError(
            f"{defense.name}: has no ε: {defense.guarantee()}",
            field="defense",
            expected="per_sample=True with a clip and noise",
        )
    multiplier = defense.magnitude
    library = _import_dp_accounting()
    if isinstance(defense, DPGaussian):
        kind, event, loss = "Gaussian", library.GaussianDpEvent(multiplier), multiplier**-2
    else:
        kind, event, loss = "Laplace", library.LaplaceDpEvent(multiplier), 1 / multiplier
    # An interval in proportion to one upload's privacy loss bounds the memory; it rounds ε up, never down.
    accountant = library.pld.PLDAccountant(
        library.NeighboringRelation.ADD_OR_REMOVE_ONE, value_discretization_interval=1e-4 * max(1.0, loss)
    )
    accountant.compose(library.PoissonSampledDpEvent(sampling_rate, event), steps)
    mechanism = f"{kind} noise, multiplier {multiplier:g}, by dp-accounting {version('dp-accounting')}"
    return PrivacyBound(float(accountant.get_epsilon(delta)), delta, steps, sampling_rate, mechanism)


def _import_dp_accounting() -> ModuleType:
    try:
        return import_module("dp_accounting")
    except ImportError:
        raise RefinerError("dp_epsilon needs dp-accounting: pip install 'refiner-fl[dp]'") from None
