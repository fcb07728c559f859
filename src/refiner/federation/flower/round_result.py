"""The result of a round: the mean update of the valid replies, and why the other nodes were left out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.supercore import log
from torch import Tensor

from refiner.errors import ProtectionError


@dataclass(frozen=True)
class RoundResult:
    """The result of a round: the mean model update `[N]`, or the reason why there is none.

    Args:
        requested: Number of nodes that a reply was requested from.
        rejected: By node id, why its reply was not used.
        used: Number of replies that were used.
        update: The mean model update, or None.
        failure: Why there is no mean update.
        spoiled: Whether a client spoiled the sum: the round changes nothing, and the training goes on.
        clipped: Ids of the nodes whose updates were longer than the norm bound, and were scaled down to it.

    >>> result = RoundResult(requested=2, rejected={7: "w: missing"}, used=1, failure="too few")
    >>> result.update_or_raise(round=3)
    Traceback (most recent call last):
    refiner.errors.ProtectionError: round 3: too few (node 7: w: missing)
    """

    requested: int
    rejected: Mapping[int, str]
    used: int = 0
    update: Tensor | None = None
    failure: str = ""
    clipped: Sequence[int] = ()
    spoiled: bool = False

    @property
    def reasons(self) -> dict[str, str]:
        """`rejected`, sorted by node id, with keys that JSON can store."""
        return {str(node): reason for node, reason in sorted(self.rejected.items())}

    def write_log(self, round: int) -> None:
        """Write the result to Flower's log, which `flwr run --stream` shows."""
        log(INFO, "round %d: %d of %d replies used", round, self.used, self.requested)
        for node, reason in self.reasons.items():
            log(WARNING, "round %d: node %s left out: %s", round, node, reason)
        for clipped in self.clipped:
            log(WARNING, "round %d: node %d clipped: its update was longer than max_norm", round, clipped)
        if self.spoiled:
            log(WARNING, "round %d: changes nothing: %s", round, self.failure)

    def update_or_raise(self, round: int) -> Tensor:
        """The mean update; without one, raises an error that names every node that was left out."""
        if self.update is None:
            reasons = "; ".join(f"node {node}: {reason}" for node, reason in self.reasons.items())
            raise ProtectionError(f"round {round}: {self.failure} ({reasons})")
        return self.update


def too_few_replies(valid: int, requested: int, minimum: int) -> str:
    """The reason for a round without a mean update.

    >>> too_few_replies(1, 4, minimum=2)
    '1 of 4 nodes sent a valid reply, at least 2 are needed'
    """
    return f"{valid} of {requested} nodes sent a valid reply, at least {minimum} are needed"
