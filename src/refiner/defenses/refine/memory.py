"""What a client remembers between rounds, in memory only: robust data by sample id, the oldest forgotten."""

from collections import OrderedDict

import torch
from torch import Tensor


class Memory:
    """Robust data of at most `capacity` samples.

    >>> memory = Memory(capacity=2)
    >>> memory.store(torch.tensor([1, 2, 3]), torch.arange(3.0)[:, None])
    >>> known, values = memory.recall(torch.tensor([1, 3]))
    >>> known.tolist(), values[1].tolist()
    ([False, True], [2.0])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._values: Tensor | None = None

    def __len__(self) -> int:
        return len(self._slots)

    def store(self, ids: Tensor, values: Tensor) -> None:
        """Keep `values [N, ...]` under `ids [N]`."""
        if self._values is None or self._values.shape[1:] != values.shape[1:]:
            self._slots.clear()
            self._values = values.new_empty((self.capacity, *values.shape[1:]))
        # A slot or an id that comes twice belongs to its last position.
        owners = {self._slot(sample): position for position, sample in enumerate(ids.tolist())}
        slots = torch.tensor(list(owners), device=values.device)
        chosen = values.detach()
        if len(owners) < len(values):
            chosen = chosen[torch.tensor(list(owners.values()), device=values.device)]
        self._values[slots] = chosen

    def recall(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which `ids [N]` are known, `[N]`, and their values `[N, ...]` (of no meaning where unknown)."""
        if self._values is None:
            raise LookupError("nothing was stored yet")
        index = torch.tensor(
            [self._slots.get(sample, -1) for sample in ids.tolist()], device=self._values.device
        )
        return index >= 0, self._values[index.clamp_min(0)]

    def _slot(self, sample: int) -> int:
        if sample in self._slots:
            self._slots.move_to_end(sample)
        elif len(self._slots) < self.capacity:
            self._slots[sample] = len(self._slots)
        else:
            _, freed = self._slots.popitem(last=False)
            self._slots[sample] = freed
        return self._slots[sample]
