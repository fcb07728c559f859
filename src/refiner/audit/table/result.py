"""The result of an audit of tabular data: the error of every feature beside that of a blind guess."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from refiner.audit.result_records import Mean
from refiner.metrics import Share
from refiner.metrics.group_verdict import most_by_chance

Level = Literal["revealed", "identifiable", "neither", "no verdict"]

# At half of a blind guess's error, three quarters of the variance is known.
REVEALED = 0.5


@dataclass(frozen=True)
class FeatureError:
    """How well one feature was reconstructed."""

    name: str
    rmse: float
    """Root mean square error over all rows, in the units of the data."""
    blind_rmse: float
    """That of the guess that uses no upload: the feature's mean in other rows."""

    @property
    def relative(self) -> float:
        """The error in multiples of the blind guess's: 0 is exact, 1 no better than a guess.

        >>> FeatureError("age", rmse=4.0, blind_rmse=16.0).relative
        0.25
        """
        return self.rmse / self.blind_rmse if self.blind_rmse else float(self.rmse > 0)


@dataclass(frozen=True, eq=False)
class TableAudit:
    """What an attack reconstructs of rows of features, from the uploads of a defence.

    Attributes:
        defense: Name of the defence, with its settings if it was given so.
        attack: Name of the attack, likewise.
        clients: Number of clients.
        batch: Rows in each client's batch.
        features: The error of every feature.
        error: The error of a row relative to a blind guess's, with features divided by their standard
            deviation: mean over all rows, with its 95 % interval. 0 is exact, 1 no better than a guess.
        identified: Rows whose reconstruction is closer to its own original than to any candidate.
        candidates: Number of rows among which the original was sought.
        undefended_error: `error` of the same attack on undefended uploads.
        original: The rows `[N, features]`.
        reconstruction: Their reconstructions, in the same order.
    """

    defense: str
    attack: str
    clients: int
    batch: int
    features: tuple[FeatureError, ...]
    error: Mean
    identified: Share
    candidates: int
    undefended_error: float
    original: Tensor
    reconstruction: Tensor

    @property
    def level(self) -> Level:
        """The verdict.

        "revealed": the error is at most half of a blind guess's. "identifiable": more rows are identified
        than chance gives in 99 of 100 audits. "no verdict": the attack reveals nothing of undefended uploads
        either.
        """
        if self.undefended_error > REVEALED:
            return "no verdict"
        if self.error.value <= REVEALED:
            return "revealed"
        explained = most_by_chance(self.identified.total, 1 / self.candidates)
        return "identifiable" if self.identified.count > explained else "neither"

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        (worst,) = self.worst(1)
        return (
            f"{self.defense} against {self.attack}: {self.level}; the error of a row is "
            f"{self.error.value:.2f} of a blind guess's (undefended {self.undefended_error:.2f}), "
            f"no feature's is below {worst.relative:.2f} ({worst.name}), "
            f"{self.identified} rows are identified among {self.candidates:,}."
        )

    def worst(self, count: int = 5) -> Sequence[FeatureError]:
        """Return the features that are reconstructed best, which leak most."""
        return sorted(self.features, key=lambda feature: feature.relative)[:count]

    def record(self) -> dict[str, Any]:
        """Return everything but the rows and their reconstructions, as JSON values."""
        return {
            "defense": self.defense,
            "attack": self.attack,
            "clients": self.clients,
            "batch": self.batch,
            "level": self.level,
            "error": asdict(self.error),
            "undefended_error": self.undefended_error,
            "identified": asdict(self.identified),
            "candidates": self.candidates,
            "features": [asdict(feature) | {"relative": feature.relative} for feature in self.features],
        }

    def __repr__(self) -> str:
        return f"TableAudit({self.sentence})"
