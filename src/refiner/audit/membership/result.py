"""The result of a membership audit: how well scores of members and of non-members can be told apart."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from refiner.audit.bootstrap import mean_interval
from refiner.audit.membership.verdict import MembershipLevel, MembershipVerdict, membership_verdict
from refiner.audit.result_records import Mean
from refiner.metrics import Estimate, RocCurve, TprAtFpr, area_under_curve, roc_curve, tpr_at_fpr
from refiner.metrics.operating_points import balanced_accuracies

FPRS = (0.01, 0.001)
"""The false-positive rates at which the TPR is given."""


@dataclass(frozen=True, eq=False)
class MembershipAudit:
    """How well an attack tells members of clients' data from non-members, by the uploads of a defence.

    Attributes:
        defense: Name of the defence, with its settings if it was given so.
        attack: Name of the attack, likewise.
        clients: Number of clients, or of sums of clients' uploads.
        batch: Members of each.
        rounds: Uploads of each that the attacker saw.
        epochs: Passes over the data in each round.
        members: Scores of members `[V, B]`, higher for what looks like a member.
        non_members: Scores of non-members `[V, N]`.
        undefended: The AUC of the same attack on undefended uploads.
        blind: The AUC of the same attack given other clients' undefended uploads, which can say nothing: away
            from 0.5, members and non-members differ already in what they show. None for a single client.
        same_labels: Whether the non-members of every client have the labels of its members, in equal shares.
            Otherwise what is found may be which classes the client has, and there is no verdict.
        seconds: How long the attack took on the defence's uploads.
        settings: What the scores depend on besides the defence, as JSON values: checksums of the data and the
            model, the attack, the threat model, the training and the seed. A control has the same.
    """

    defense: str
    attack: str
    clients: int
    batch: int
    rounds: int
    epochs: int
    members: Tensor
    non_members: Tensor
    undefended: Estimate
    blind: Estimate | None
    same_labels: bool
    seconds: float
    settings: Mapping[str, object]

    @cached_property
    def auc(self) -> Estimate:
        """The area under the ROC curve: the probability that a member scores higher than a non-member."""
        return area_under_curve(self.members, self.non_members)

    @cached_property
    def curve(self) -> RocCurve:
        """The ROC curve."""
        return roc_curve(self.members, self.non_members)

    @cached_property
    def tpr(self) -> Sequence[TprAtFpr]:
        """The TPR at each of `FPRS`."""
        return [tpr_at_fpr(self.members, self.non_members, fpr) for fpr in FPRS]

    def has_enough_for(self, point: TprAtFpr) -> bool:
        """Whether there are non-members enough for a rate; with fewer its threshold is above all of them."""
        return point.fpr * self.non_members.numel() >= 1

    @cached_property
    def balanced_accuracy(self) -> Mean | None:
        """The mean of TPR and TNR at a threshold that other clients chose; None for a single client."""
        accuracies = balanced_accuracies(self.members, self.non_members)
        return None if accuracies is None else mean_interval(accuracies.tolist(), self.clients)

    @cached_property
    def verdict(self) -> MembershipVerdict:
        """The verdict, and why there is none; see `membership_verdict`."""
        return membership_verdict(self.auc, self.undefended, self.blind, same_labels=self.same_labels)

    @property
    def level(self) -> MembershipLevel:
        """The verdict alone."""
        return self.verdict.level

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        interval = "" if self.auc.low is None else f" ({self.auc.low:.3f} to {self.auc.high:.3f})"
        low = self.tpr[0]
        found = ""
        if self.has_enough_for(low):
            found = f"; {100 * low.value:.1f} % of members at {100 * low.fpr:g} % false positives"
        reason = self.verdict.reason
        verdict = f"{self.level} ({reason})" if reason else f"members {self.level}"
        return (
            f"{self.defense} against {self.attack}: {verdict}; AUC {self.auc.value:.3f}{interval}"
            f", undefended {self.undefended.value:.3f}{found}."
        )

    def record(self) -> dict[str, Any]:
        """Return everything but the scores, as JSON values."""
        return {
            "defense": self.defense,
            "attack": self.attack,
            "clients": self.clients,
            "batch": self.batch,
            "rounds": self.rounds,
            "epochs": self.epochs,
            "level": self.level,
            "reason": self.verdict.reason,
            "auc": self.auc._asdict(),
            "undefended_auc": self.undefended._asdict(),
            "blind_auc": None if self.blind is None else self.blind._asdict(),
            "balanced_accuracy": None if self.balanced_accuracy is None else asdict(self.balanced_accuracy),
            "tpr": [asdict(point) | {"value": point.value} for point in self.tpr],
            "members": self.members.numel(),
            "non_members": self.non_members.numel(),
            "same_labels": self.same_labels,
            "seconds": round(self.seconds, 2),
            "settings": dict(self.settings),
        }

    def __repr__(self) -> str:
        return f"MembershipAudit({self.sentence})"
