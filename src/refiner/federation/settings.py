"""What a federated training is: every choice beside the model, the data and the defence."""

from dataclasses import dataclass

from refiner import checks
from refiner.errors import SettingError


@dataclass(frozen=True)
class Training:
    """The paper's FedSGD by default: K of m clients, batches of 128, the server averages, rate 0.01.

    >>> Training(clients=10, sampled=20)
    Traceback (most recent call last):
    refiner.errors.SettingError: sampled = 20: expected an integer in [1, 10]
    """

    rounds: int = 8000
    clients: int = 10
    """m, among whom the data are parted."""
    sampled: int | None = None
    """K, how many of them take part in a round; None for all."""
    batch: int = 128
    """Samples of a local step; a client that has fewer uses what it has."""
    local_steps: int = 1
    """E: 1 is FedSGD, more is FedAvg, where each step's gradient goes through the defence."""
    lr: float = 0.01
    """Learning rate of a local step."""
    seed: int | None = 0
    """Of the model, the batches and, as this is a study, the defence's noise; None takes that noise from the
    operating system, as a client does."""

    def __post_init__(self) -> None:
        checks.integer("rounds", self.rounds, 1)
        checks.integer("clients", self.clients, 1)
        if self.sampled is not None:
            checks.integer("sampled", self.sampled, 1, self.clients)
        checks.integer("batch", self.batch, 1)
        checks.integer("local_steps", self.local_steps, 1)
        checks.number("lr", self.lr, 0, above=True)
        if self.seed is not None:
            checks.integer("seed", self.seed, 0, 2**63 - 1)

    @property
    def taking_part(self) -> int:
        """How many clients take part in a round."""
        return self.clients if self.sampled is None else self.sampled


def check_parts(training: Training, parts: int) -> None:
    """Refuse data that are parted among another number of clients."""
    if parts != training.clients:
        raise SettingError(f"clients = {training.clients}: the data are parted among {parts}")
