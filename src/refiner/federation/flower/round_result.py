"""What came of a round: the mean of the good answers, and who was left out, and why."""

from collections.abc import Mapping
from dataclasses import dataclass
from logging import INFO, WARNING

from flwr.supercore import log
from torch import Tensor

from refiner.errors import ProtectionError


@dataclass(frozen=True)
class Gathered:
    """What came of a round: the mean move `[N]` of the nodes whose answers are sound, or why there is none.

    >>> Gathered(asked=2, rejected={7: "w: missing"}, used=1, failure="too few").mean(round=3)
    Traceback (most recent call last):
    refiner.errors.ProtectionError: round 3: too few (node 7: w: missing)
    """

    asked: int
    rejected: Mapping[int, str]
    """By node, why its answer was left out."""
    used: int = 0
    move: Tensor | None = None
    failure: str = ""

    @property
    def reasons(self) -> dict[str, str]:
        """The rejected in the order of their ids, as JSON has them."""
        return {str(node): reason for node, reason in sorted(self.rejected.items())}

    def tell(self, round: int) -> None:
        """Say it in Flower's log, which `--stream` shows."""
        log(INFO, "round %d: %d of %d answers used", round, self.used, self.asked)
        for node, reason in self.reasons.items():
            log(WARNING, "round %d: node %s left out: %s", round, node, reason)

    def mean(self, round: int) -> Tensor:
        """The mean move, or an error that names every node that was left out."""
        if self.move is None:
            why = "; ".join(f"node {node}: {reason}" for node, reason in self.reasons.items())
            raise ProtectionError(f"round {round}: {self.failure} ({why})")
        return self.move


def too_few(good: int, asked: int, minimum: int) -> str:
    """Why there is no mean.

    >>> too_few(1, 4, minimum=2)
    '1 of 4 nodes gave a good answer, at least 2 must'
    """
    return f"{good} of {asked} nodes gave a good answer, at least {minimum} must"
