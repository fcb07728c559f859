"""The federated protocol of an audit: how many local steps an upload has, and how many clients a sum."""

from dataclasses import dataclass

from torch import Tensor

from refiner import checks
from refiner.errors import DataError


@dataclass(frozen=True)
class Protocol:
    """What the server sees of clients' batches; by default one gradient for each client (FedSGD).

    Args:
        local_steps: Steps of SGD in each client (FedAvg): its batch is divided into so many parts in order,
            one for each step. The server sees the sum of the steps' gradients: the change of the model
            divided by the learning rate.
        lr: The learning rate of these steps; without effect if there is one.
        summed_clients: Clients of whose uploads the server sees the mean only (secure aggregation).

    Raises:
        SettingError: A number is out of its range.

    >>> Protocol(summed_clients=10).observations(victims=20, batch=4)
    (2, 40)
    """

    local_steps: int = 1
    lr: float = 0.01
    summed_clients: int = 1

    def __post_init__(self) -> None:
        checks.integer("local_steps", self.local_steps, 1)
        checks.integer("summed_clients", self.summed_clients, 1)
        checks.number("lr", self.lr, 0, 1e3, above=True)

    def observations(self, victims: int, batch: int) -> tuple[int, int]:
        """Return how many observations the server makes, and how many samples each is of.

        Args:
            victims: The number of clients.
            batch: The samples of each client.

        Raises:
            DataError: Clients can't be divided into sums, or batches into steps.
        """
        if victims % self.summed_clients:
            raise DataError(
                field="summed_clients",
                value=self.summed_clients,
                expected=f"a divisor of the {victims} clients of the audit",
            )
        if batch % self.local_steps:
            raise DataError(
                field="local_steps", value=self.local_steps, expected=f"a divisor of the batch of {batch}"
            )
        return victims // self.summed_clients, batch * self.summed_clients

    def observed(self, values: Tensor) -> Tensor:
        """Return values `[V, B, …]` of clients as those of observations, `[V / S, S · B, …]`."""
        return values.reshape(-1, self.summed_clients * values.shape[1], *values.shape[2:])

    def by_client(self, values: Tensor) -> Tensor:
        """Return values `[O, S · B, …]` of observations as those of clients, as they were."""
        return values.reshape(-1, values.shape[1] // self.summed_clients, *values.shape[2:])
