"""Settings of federated training: everything except the model, the data and the defence."""

from dataclasses import dataclass

from refiner import checks
from refiner.errors import SettingError


@dataclass(frozen=True)
class FederatedSettings:
    """Settings of FedSGD and FedAvg; the defaults are the paper's.

    Args:
        rounds: Number of communication rounds.
        clients: Number of clients m that the data are split across.
        sampled: Number of clients K that take part in a round; None for all of them.
        batch: Samples in a local step. A client with fewer samples uses all of them.
        local_steps: Local steps E in a round. 1 is FedSGD, more is FedAvg; the gradient of every local step
            goes through the defence.
        lr: Learning rate of a local step.
        seed: Seed of the model, the batches and, as in any reproducible experiment, the defence's noise.
            With None the noise comes from the operating system, as it does on a real client.

    Raises:
        SettingError: If a value has the wrong type or lies outside its range.

    >>> FederatedSettings(clients=10, sampled=20)
    Traceback (most recent call last):
    refiner.errors.SettingError: sampled = 20: expected an integer in [1, 10]
    """

    rounds: int = 8000
    clients: int = 10
    sampled: int | None = None
    batch: int = 128
    local_steps: int = 1
    lr: float = 0.01
    seed: int | None = 0

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
    def clients_per_round(self) -> int:
        """The number of clients that take part in a round."""
        return self.clients if self.sampled is None else self.sampled


def check_partition(settings: FederatedSettings, clients: int) -> None:
    """Raise if the data are split across another number of clients than the settings name."""
    if clients != settings.clients:
        raise SettingError(
            field="clients",
            value=settings.clients,
            expected=f"{clients}, the number of clients that the data are split across",
            problem=f"the data are split across {clients} clients",
        )
