"""What a client remembers between rounds, in memory only: robust data by sample id, the oldest forgotten."""

from collections import OrderedDict

import torch
from torch import Tensor


class Memory:
    """Robust data of at most `capacity` samples.

    >>> memory = Memory(capacity=2)
    >>> memory.store(torch.tensor([1, 2, 3]), torch.arange(3.0)[:, None])
    >>> known, values = memory.recall(torch.tensor([1, 3]), like=torch.zeros(2, 1))
    >>> known.tolist(), values[1].tolist()
    ([False, True], [2.0])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._values = torch.empty(0)

    def __len__(self) -> int:
        return len(self._slots)

    def store(self, ids: Tensor, values: Tensor) -> None:
        """Keep `values [N, ...]` under `ids [N]`; values of another kind than before start anew."""
        if not self._fits(values):
            self._slots.clear()
            self._values = values.new_empty((0, *values.shape[1:]))
        # A slot or an id that comes twice belongs to its last position.
        owners = {self._slot(sample): position for position, sample in enumerate(ids.tolist())}
        missing = len(self._slots) - len(self._values)
        if missing > 0:
            room = min(self.capacity, max(len(self._slots), 2 * len(self._values))) - len(self._values)
            self._values = torch.cat([self._values, values.new_empty((room, *values.shape[1:]))])
        slots, positions = (
            torch.tensor(list(part), device=values.device) for part in (owners, owners.values())
        )
        self._values[slots] = values.detach()[positions]

    def recall(self, ids: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Which `ids [N]` are known, `[N]`, and their values, shaped as `like` (no meaning where unknown)."""
        if not len(self) or not self._fits(like):
            return torch.zeros_like(ids, dtype=torch.bool), like
        index = torch.tensor([self._slots.get(sample, -1) for sample in ids.tolist()], device=like.device)
        return index >= 0, self._values[index.clamp_min(0)]

    def _fits(self, values: Tensor) -> bool:
        held = self._values
        return (held.shape[1:], held.dtype, held.device) == (values.shape[1:], values.dtype, values.device)

    def _slot(self, sample: int) -> int:
        if sample in self._slots:
            self._slots.move_to_end(sample)
        elif len(self._slots) < self.capacity:
            self._slots[sample] = len(self._slots)
        else:
            _, freed = self._slots.popitem(last=False)
            self._slots[sample] = freed
        return self._slots[sample]
