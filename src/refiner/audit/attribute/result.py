"""The result of an audit of attribute inference: how well uploads reveal a property that is not the task."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import Tensor

from refiner.inference import Interval
from refiner.metrics import RocCurve, roc_curve

AttributeLevel = Literal["found", "reversed", "not found", "no verdict"]


@dataclass(frozen=True, eq=False)
class AttributeAudit:
    """What an attack model infers about an attribute from the uploads of a defence.

    Attributes:
        defense: Name of the defence, with its settings if it was given so.
        attribute: Name of the attribute.
        clients: Number of clients.
        batch: Images in each client's batch.
        auc: The area under the ROC curve, if a batch has one value; 0.5 is chance.
        balanced_accuracy: Right answers at the threshold of public clients who were held out.
        r2: For mixed batches: the part of the blind guess's squared error that the attack removes; 0 is
            chance.
        mae: For mixed batches: the mean absolute error of the share of images with value 1.
        blind_mae: That of the guess without an upload, the mean share in public clients.
        undefended: `auc` or `r2` of the same attack on undefended uploads.
        model: The attack model that was chosen; see `AttributePrediction.model`.
        public: Number of public images.
        scores: The score of every client `[V]`; for mixed batches the predicted share.
        actual: The value or share of every client `[V]`.
        settings: What the scores depend on besides the defence, as JSON values: checksums of the data and the
            model, the attack, the threat model and the seed. A control has the same.
    """

    defense: str
    attribute: str
    clients: int
    batch: int
    auc: Interval | None
    balanced_accuracy: Interval | None
    r2: Interval | None
    mae: float | None
    blind_mae: float | None
    undefended: Interval
    model: str
    public: int
    scores: Tensor
    actual: Tensor
    settings: Mapping[str, object]

    @property
    def curve(self) -> RocCurve | None:
        """The ROC curve; None for mixed batches."""
        if self.auc is None:
            return None
        has_it = self.actual > 0.5
        return roc_curve(self.scores[None, has_it], self.scores[None, ~has_it])

    @property
    def score(self) -> Interval:
        """The score that the verdict is about: `auc`, or `r2` for mixed batches."""
        chosen = self.auc or self.r2
        assert chosen is not None
        return chosen

    @property
    def chance(self) -> float:
        """What that score is by chance."""
        return 0.0 if self.auc is None else 0.5

    @property
    def level(self) -> AttributeLevel:
        """The verdict.

        "found": the interval of the score lies above chance. "reversed": that of the AUC lies below; the
        attack is misled to the opposite answer, and an attacker who suspects it turns the answers around.
        "not found": neither, but that of undefended uploads lies above chance. "no verdict": that does not;
        the attack shows nothing about the defence.
        """
        if self.score.low > self.chance:
            return "found"
        if self.auc is not None and self.auc.high < self.chance:
            return "reversed"
        return "not found" if self.undefended.low > self.chance else "no verdict"

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if self.auc is not None:
            measured = f"AUC {self.auc}, undefended {self.undefended.value:.2f}; chance is 0.50"
        else:
            measured = (
                f"R² of its share {self.r2}, undefended {self.undefended.value:.2f}; the error is "
                f"{self.mae:.2f}, that of a blind guess {self.blind_mae:.2f}"
            )
        return f"{self.defense}: {self.attribute} {self.level} in {self.clients} uploads; {measured}."

    def record(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        intervals = ("auc", "balanced_accuracy", "r2", "undefended")
        values: dict[str, Interval | None] = {name: getattr(self, name) for name in intervals}
        return {
            "defense": self.defense,
            "attribute": self.attribute,
            "clients": self.clients,
            "batch": self.batch,
            "level": self.level,
            **{name: None if value is None else asdict(value) for name, value in values.items()},
            "mae": self.mae,
            "blind_mae": self.blind_mae,
            "model": self.model,
            "public": self.public,
            "scores": [round(score, 4) for score in self.scores.tolist()],
            "actual": self.actual.tolist(),
            "settings": dict(self.settings),
        }

    def __repr__(self) -> str:
        return f"AttributeAudit({self.sentence})"
