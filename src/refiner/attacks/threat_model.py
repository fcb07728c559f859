"""The threat model: what an attacker may use besides the upload and the model."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Literal

from refiner import checks
from refiner.errors import ThreatModelError

Capability = Literal["labels", "statistics", "generator", "public", "defense", "changed_model"]
"""One thing that a threat model can grant: the name of a field of `ThreatModel`."""


@dataclass(frozen=True)
class ThreatModel:
    """What an attacker may use besides the upload, the model and the batch size.

    Args:
        labels: The victims' labels. Without them an attack infers them from the last layer's gradient.
        statistics: The batch-norm statistics of the model over data like the victims'.
        generator: A generator trained on public images like the victims'.
        public: Labelled public images like the victims'. Granted by default: a careful attacker has them.
        defense: The defence and its settings, but no client's secret. Granted by default: a method must
            protect those who say which one they use (Kerckhoffs's principle).
        changed_model: The server may send clients a changed model, such as one with a module in front that
            makes gradients readable: a malicious server, not an honest but curious one.

    >>> ThreatModel().check({"generator"}, "ggl")
    Traceback (most recent call last):
    refiner.errors.ThreatModelError: ggl needs generator, which this threat model does not grant; ...
    """

    labels: bool = False
    statistics: bool = False
    generator: bool = False
    public: bool = True
    defense: bool = True
    changed_model: bool = False

    def __post_init__(self) -> None:
        for capability in fields(self):
            checks.flag(capability.name, getattr(self, capability.name))

    def check(self, needs: Collection[str], attack: str) -> None:
        """Raise unless everything that an attack needs is granted.

        Args:
            needs: The capabilities that the attack needs.
            attack: The attack's name, for the message.

        Raises:
            ThreatModelError: A capability is not granted.
        """
        missing = sorted(need for need in needs if not getattr(self, need))
        if missing:
            raise ThreatModelError(
                f"{attack} needs {' and '.join(missing)}, which this threat model does not grant",
                missing=missing,
            )
