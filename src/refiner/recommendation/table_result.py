"""The recommendation for tabular data: its target, what every candidate reached, and the choice."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from refiner import checks
from refiner.audit.table.result import TableAudit
from refiner.metrics import Share
from refiner.recommendation.price import Price
from refiner.recommendation.result import training_lines

# Rows that reconstructions may single out among all candidates.
_IDENTIFIABLE_SHARE = 0.1


@dataclass(frozen=True)
class TableEvidence:
    """What all attacks together reached on one defence."""

    attack: str
    """The attack with the smallest error of a row."""
    error: float
    """That error, relative to a blind guess's."""
    feature: str
    """The feature that is reconstructed best, by any attack."""
    feature_error: float
    """Its error relative to a blind guess's."""
    identified: Share
    """Identified rows, by the attack that identifies most."""

    @classmethod
    def of(cls, results: Sequence[TableAudit]) -> "TableEvidence":
        """Return the evidence of the audits of one defence, one for each attack."""
        strongest = min(results, key=lambda result: result.error.value)
        feature = min((result.worst(1)[0] for result in results), key=lambda feature: feature.relative)
        identified = max((result.identified for result in results), key=lambda share: share.value)
        return cls(strongest.attack, strongest.error.value, feature.name, feature.relative, identified)

    def or_worse(self, other: "TableEvidence | None") -> "TableEvidence":
        """Return the evidence of two models together, such as an untrained and a trained one."""
        if other is None:
            return self
        row = min(self, other, key=lambda evidence: evidence.error)
        feature = min(self, other, key=lambda evidence: evidence.feature_error)
        identified = max(self.identified, other.identified, key=lambda share: share.value)
        return TableEvidence(row.attack, row.error, feature.feature, feature.feature_error, identified)


@dataclass(frozen=True)
class TableTarget:
    """What counts as protected: no feature is reconstructed much better than by a blind guess.

    At most 10 % of the rows may be identified as well.

    Args:
        min_error: The smallest error of a feature that an attack may reach, in multiples of a blind guess's.

    Raises:
        SettingError: It is not in (0, 1].

    >>> TableTarget(min_error=0.8).text
    "no feature's error below 0.8 of a blind guess's, at most 10 % of the rows identified"
    """

    min_error: float = 0.9

    def __post_init__(self) -> None:
        checks.number("min_error", self.min_error, 0, 1, above=True)

    @property
    def text(self) -> str:
        """The target in words."""
        return (
            f"no feature's error below {self.min_error:g} of a blind guess's, at most "
            f"{100 * _IDENTIFIABLE_SHARE:g} % of the rows identified"
        )

    def is_met(self, evidence: TableEvidence) -> bool:
        """Return whether the measured values meet the target."""
        return (
            min(evidence.error, evidence.feature_error) >= self.min_error
            and evidence.identified.value <= _IDENTIFIABLE_SHARE
        )


@dataclass(frozen=True)
class TableRow:
    """What was measured of one defence."""

    defense: str
    """Its name with settings."""
    evidence: TableEvidence
    """What attacks reached, on the untrained or the trained model, whichever is worse."""
    price: Price
    is_met: bool
    """Whether the target is met."""


@dataclass(frozen=True)
class TableRecommendation:
    """Which defence to take for a model of rows, and why.

    Attributes:
        chosen: The defence, by name with settings; None if no candidate meets the target.
        rows: All candidates that were measured, the best choice first.
        undefended: What the attacks reach without a defence.
        attacks: The attacks that work on this model.
        failing: Attacks that were tried and reveal nothing of undefended uploads.
        skipped: Candidates that were not measured, with the reason.
        target: What a defence has to achieve.
        batch: The batch size of the training that is to be protected.
        clients: How many clients were attacked, each with one row.
        training_rounds: Rounds of the short trainings; 0 for none.
        accuracy: The accuracy after the undefended one; None without trainings.
    """

    chosen: str | None
    rows: tuple[TableRow, ...]
    undefended: TableEvidence
    attacks: tuple[str, ...]
    failing: tuple[str, ...]
    skipped: dict[str, str]
    target: TableTarget
    batch: int
    clients: int
    training_rounds: int
    accuracy: float | None

    @property
    def sentence(self) -> str:
        """The recommendation in one sentence, and what it leaves open."""
        if not self.attacks:
            return (
                f"No recommendation: no attack works on this model without a defence (the best has "
                f"{self.undefended.error:.2f} of a blind guess's error), so that none can show what a "
                "defence does."
            )
        row = next((row for row in self.rows if row.defense == self.chosen), None)
        if row is None:
            return f"No candidate meets the target ({self.target.text}); the table shows what each reaches."
        worst = row.evidence
        price = f"uploads differ from the gradient by {row.price.error_text} of its length"
        end = "; measured on these weights only: at another stage of the training uploads may reveal more."
        if row.price.pmm is not None and self.accuracy is not None:
            price += (
                f" and {self.training_rounds:,} rounds of training keep {row.price.pmm:.1f} % of the "
                f"accuracy ({100 * self.accuracy:.1f} % undefended)"
            )
            end = "."
        return (
            f"Take {row.defense}: against the strongest attack, {worst.attack}, the error of a row is "
            f"{worst.error:.2f} of a blind guess's (undefended {self.undefended.error:.2f}), no feature's is "
            f"below {worst.feature_error:.2f} ({worst.feature}), {worst.identified} rows are identified, and "
            f"with batches of {self.batch} {price}{end}"
        )

    @property
    def code(self) -> str:
        """The lines for a training loop; empty without a recommendation."""
        return "" if self.chosen is None else training_lines(self.chosen)

    def record(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        return {"sentence": self.sentence, "code": self.code, **asdict(self)}
