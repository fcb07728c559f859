"""What a defence has to achieve against every attack that works without it."""

from collections.abc import Sequence
from dataclasses import dataclass

from refiner import checks
from refiner.audit.caveats import identification_caveat
from refiner.audit.result import AuditResult
from refiner.audit.result_records import Mean
from refiner.errors import SettingError
from refiner.metrics import Share
from refiner.metrics.thresholds import PAPER_THRESHOLDS

# What an attack may reach and still count as no better than a blind guess: dB above the guess, and images
# that its reconstructions single out among all candidates.
_PSNR_MARGIN, _IDENTIFIABLE_SHARE = 0.5, 0.1


@dataclass(frozen=True)
class Evidence:
    """What all attacks together reached on one defence."""

    attack: str
    """The attack with the highest mean PSNR."""
    psnr: Mean
    """Its mean PSNR."""
    blind_psnr: float
    """The mean PSNR of the blind guess."""
    visible: Share
    """Visible images, by the attack that shows most."""
    identifiable: Share
    """Visible or identified images, by the attack that gives most away."""
    caveat: str = ""
    """Why identified images are not among them; empty if they are."""

    @classmethod
    def of(cls, results: Sequence[AuditResult]) -> "Evidence":
        """Return the evidence of the audits of one defence, one for each attack."""
        strongest = max(results, key=lambda result: result.means["psnr"].value)
        verdicts = [result.verdict for result in results]
        return cls(
            strongest.attack,
            strongest.means["psnr"],
            strongest.means["blind_psnr"].value,
            max((verdict.visible for verdict in verdicts), key=lambda share: share.value),
            max((verdict.identifiable for verdict in verdicts), key=lambda share: share.value),
            next((text for text in map(identification_caveat, results) if text), ""),
        )

    def or_worse(self, other: "Evidence | None") -> "Evidence":
        """Return the evidence of two models together, such as an untrained and a trained one."""
        if other is None:
            return self
        worse = max(self, other, key=lambda evidence: evidence.psnr.value - evidence.blind_psnr)
        return Evidence(
            worse.attack,
            worse.psnr,
            worse.blind_psnr,
            max(self.visible, other.visible, key=lambda share: share.value),
            max(self.identifiable, other.identifiable, key=lambda share: share.value),
            self.caveat or other.caveat,
        )


@dataclass(frozen=True)
class Target:
    """What counts as protected; without limits: no attack is better than a blind guess.

    Better than a blind guess is a mean PSNR of more than 0.5 dB above that of the best guess that uses no
    upload, at least 5 % visible images, or more than 10 % identifiable ones.

    Args:
        max_psnr: The highest mean PSNR in dB that an attack may reach.
        max_exposed: The largest share of images that may be visible or identifiable, in [0, 1].

    Raises:
        SettingError: A limit is out of range, or both are given.

    >>> Target(max_exposed=0.05).text
    'at most 5 % of the images exposed'
    >>> Target(max_psnr=-1)
    Traceback (most recent call last):
    refiner.errors.SettingError: max_psnr = -1: expected a number in [0, ∞)
    """

    max_psnr: float | None = None
    max_exposed: float | None = None

    def __post_init__(self) -> None:
        if self.max_psnr is not None:
            checks.number("max_psnr", self.max_psnr, 0)
        if self.max_exposed is not None:
            checks.number("max_exposed", self.max_exposed, 0, 1)
        if self.max_psnr is not None and self.max_exposed is not None:
            raise SettingError(
                field="max_exposed", value=self.max_exposed, expected="no value together with max_psnr"
            )

    @property
    def text(self) -> str:
        """The target in words."""
        if self.max_psnr is not None:
            return f"no attack above {self.max_psnr:g} dB"
        if self.max_exposed is not None:
            return f"at most {100 * self.max_exposed:g} % of the images exposed"
        return "no attack better than a blind guess"

    def is_met(self, evidence: Evidence) -> bool:
        """Return whether the measured values meet the target."""
        return self._meets(
            evidence.psnr.value, evidence.visible.value, evidence.identifiable.value, evidence.blind_psnr
        )

    def is_possible(self, evidence: Evidence) -> bool:
        """Return whether the target could be met within the intervals of a small measurement."""
        low = evidence.psnr.value if evidence.psnr.low is None else evidence.psnr.low
        return self._meets(low, evidence.visible.low, evidence.identifiable.low, evidence.blind_psnr)

    def _meets(self, psnr: float, visible: float, identifiable: float, blind_psnr: float) -> bool:
        if self.max_psnr is not None:
            return psnr <= self.max_psnr
        if self.max_exposed is not None:
            return identifiable <= self.max_exposed
        return (
            psnr <= blind_psnr + _PSNR_MARGIN
            and visible < PAPER_THRESHOLDS.visible_share
            and identifiable <= _IDENTIFIABLE_SHARE
        )
