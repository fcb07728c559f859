"""What an attacker may use beside what it sees."""

from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Literal

from refiner import checks
from refiner.errors import ThreatModelError

Grant = Literal["labels", "statistics", "generator"]


@dataclass(frozen=True)
class ThreatModel:
    """What an attacker may use beside the upload, the model and its size of batch.

    >>> ThreatModel().check({"generator"}, "ggl")
    Traceback (most recent call last):
    refiner.errors.ThreatModelError: ggl needs generator, which this threat model does not grant; ...
    """

    labels: bool = False
    """The victims' labels; without them they are inferred from the last layer."""
    statistics: bool = False
    """The statistics of a model with batch norm over data like the victims'."""
    generator: bool = False
    """A generator trained on public images like the victims'."""

    def __post_init__(self) -> None:
        for grant in fields(self):
            checks.flag(grant.name, getattr(self, grant.name))

    def check(self, needs: Collection[str], attack: str) -> None:
        """Refuse an attack that needs more than is granted."""
        missing = sorted(need for need in needs if not getattr(self, need))
        if missing:
            grants = ", ".join(f"{need}=True" for need in missing)
            raise ThreatModelError(
                f"{attack} needs {' and '.join(missing)}, which this threat model does not grant; "
                f"use ThreatModel({grants}) if the attacker has it"
            )
