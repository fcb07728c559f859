"""Who takes part in a round, and with which samples: a function of the seed and the round alone.

Nothing is remembered between rounds, so that a training that was stopped goes on with the same batches, and
clients on other machines draw what one machine would have drawn for them.
"""

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from refiner.errors import DataError
from refiner.federation.settings import Training, check_parts


def derived(seed: int, *names: object) -> int:
    """A seed for one purpose.

    >>> derived(0, "batch", 1) == derived(0, "batch", 1) != derived(0, "batch", 2)
    True
    """
    digest = hashlib.sha256(repr((seed, *names)).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def participants(training: Training, round: int, among: int) -> list[int]:
    """Who of `among` clients take part in a round, counted from 1: K of them, or all if there are no more.

    >>> len(participants(Training(clients=10, sampled=3), 1, 10)), participants(Training(clients=3), 1, 2)
    (3, [0, 1])
    """
    if training.taking_part >= among:
        return list(range(among))
    draws = torch.Generator().manual_seed(derived(training.seed or 0, "participants", round))
    return sorted(torch.randperm(among, generator=draws)[: training.taking_part].tolist())


class Schedule:
    """The rounds of a training over `parts`, the samples of each client.

    A client goes through its own samples in an order that is new in every pass, a batch a step; what is left
    over at the end of a pass, less than a batch, waits for the next.

    >>> schedule = Schedule([torch.arange(4), torch.arange(4, 8)], Training(clients=2, batch=2))
    >>> schedule.participants(1)
    [0, 1]
    >>> both = torch.cat([schedule.batch(1, round=1), schedule.batch(1, round=2)])
    >>> both.sort().values.tolist()
    [4, 5, 6, 7]
    """

    def __init__(self, parts: Sequence[Tensor], training: Training) -> None:
        check_parts(training, len(parts))
        for client, part in enumerate(parts):
            if not len(part):
                raise DataError(f"client {client} has no samples")
        self.parts = [part.cpu() for part in parts]
        self._sizes = [min(training.batch, len(part)) for part in parts]
        self._steps = [len(part) // size for part, size in zip(parts, self._sizes, strict=True)]
        self.training = training
        self._seed = training.seed or 0
        self._orders: dict[int, tuple[int, Tensor]] = {}

    def participants(self, round: int) -> list[int]:
        """The clients of a round, counted from 1, in rising order."""
        return participants(self.training, round, self.training.clients)

    def size(self, client: int) -> int:
        """How many samples each of a client's batches has."""
        return self._sizes[client]

    def batch(self, client: int, round: int, step: int = 0) -> Tensor:
        """The samples of a client's local step."""
        size = self._sizes[client]
        pass_number, place = divmod((round - 1) * self.training.local_steps + step, self._steps[client])
        return self._order(client, pass_number)[place * size : (place + 1) * size]

    def _order(self, client: int, pass_number: int) -> Tensor:
        held = self._orders.get(client)
        if held is None or held[0] != pass_number:
            draws = torch.Generator().manual_seed(derived(self._seed, "order", client, pass_number))
            part = self.parts[client]
            held = self._orders[client] = pass_number, part[torch.randperm(len(part), generator=draws)]
        return held[1]
