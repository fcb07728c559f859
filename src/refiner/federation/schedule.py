"""Which clients take part in a round and which samples they use: a function of the seed and the round alone.

No state is carried from round to round. A resumed training therefore continues with the same batches, and
clients on other machines draw the same batches as a simulation on one machine.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from refiner.errors import DataError
from refiner.federation.federated_settings import FederatedSettings, check_partition


def derive_seed(seed: int, *names: object) -> int:
    """A seed for one purpose, derived from the experiment's seed and the purpose's name.

    >>> derive_seed(0, "batch", 1) == derive_seed(0, "batch", 1) != derive_seed(0, "batch", 2)
    True
    """
    digest = hashlib.sha256(repr((seed, *names)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def sample_clients(settings: FederatedSettings, round: int, available: int) -> list[int]:
    """The positions of the clients that take part in a round, out of `available` ones; rounds start at 1.

    K positions in ascending order, or all of them if no more than K are available.

    >>> len(sample_clients(FederatedSettings(clients=10, sampled=3), 1, 10))
    3
    >>> sample_clients(FederatedSettings(clients=3), 1, 2)
    [0, 1]
    """
    if settings.clients_per_round >= available:
        return list(range(available))
    generator = torch.Generator().manual_seed(derive_seed(settings.seed or 0, "participants", round))
    return sorted(torch.randperm(available, generator=generator)[: settings.clients_per_round].tolist())


class Schedule:
    """The participants and batches of every round.

    A client goes through its samples in an order that is drawn anew for every epoch, one batch a step. The
    samples left over at the end of an epoch, fewer than a batch, are not used in that epoch.

    Args:
        client_indices: The sample indices of each client, as `make_partition` returns them.
        settings: Clients, batch size, local steps and seed.

    Raises:
        SettingError: If `client_indices` names another number of clients than `settings`.
        DataError: If a client has no samples.

    >>> settings = FederatedSettings(clients=2, batch=2)
    >>> schedule = Schedule([torch.arange(4), torch.arange(4, 8)], settings)
    >>> schedule.participants(1)
    [0, 1]
    >>> epoch = torch.cat([schedule.batch_indices(1, round=1), schedule.batch_indices(1, round=2)])
    >>> epoch.sort().values.tolist()
    [4, 5, 6, 7]
    """

    def __init__(self, client_indices: Sequence[Tensor], settings: FederatedSettings) -> None:
        check_partition(settings, len(client_indices))
        for client, indices in enumerate(client_indices):
            if not len(indices):
                raise DataError(
                    f"client {client} has no samples",
                    field=f"client_indices[{client}]",
                    value=0,
                    expected="at least one sample",
                )
        self.client_indices = [indices.cpu() for indices in client_indices]
        self.settings = settings
        self._batch_sizes = [min(settings.batch, len(indices)) for indices in client_indices]
        self._steps_per_epoch = [
            len(indices) // size for indices, size in zip(client_indices, self._batch_sizes, strict=True)
        ]
        self._seed = settings.seed or 0
        self._epochs: dict[int, tuple[int, Tensor]] = {}

    def participants(self, round: int) -> list[int]:
        """The clients that take part in a round.

        Args:
            round: Number of the round; rounds start at 1.

        Returns:
            The clients' numbers, in ascending order.
        """
        return sample_clients(self.settings, round, self.settings.clients)

    def batch_size(self, client: int) -> int:
        """The number of samples in each batch of a client.

        Args:
            client: The client's number.

        Returns:
            The batch size of the settings, or the client's number of samples if that is smaller.
        """
        return self._batch_sizes[client]

    def batch_indices(self, client: int, round: int, step: int = 0) -> Tensor:
        """The samples of a client's local step.

        Args:
            client: The client's number.
            round: Number of the round; rounds start at 1.
            step: Number of the local step within the round, from 0.

        Returns:
            Indices into the dataset, int64 `[batch_size(client)]`.
        """
        size = self._batch_sizes[client]
        step_number = (round - 1) * self.settings.local_steps + step
        epoch, position = divmod(step_number, self._steps_per_epoch[client])
        return self._shuffled(client, epoch)[position * size : (position + 1) * size]

    def _shuffled(self, client: int, epoch: int) -> Tensor:
        """A client's sample indices in the order of an epoch; the last epoch's order is cached."""
        cached = self._epochs.get(client)
        if cached is None or cached[0] != epoch:
            generator = torch.Generator().manual_seed(derive_seed(self._seed, "order", client, epoch))
            indices = self.client_indices[client]
            order = torch.randperm(len(indices), generator=generator)
            cached = self._epochs[client] = epoch, indices[order]
        return cached[1]
