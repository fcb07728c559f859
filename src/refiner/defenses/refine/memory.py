"""What a client remembers between rounds, in memory only: robust data by sample id, the oldest forgotten."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor


class Memory:
    """Robust data of at most `capacity` samples.

    >>> memory = Memory(capacity=2)
    >>> memory.store([1, 2, 3], torch.arange(3.0)[:, None])
    >>> known, values = memory.recall([1, 3], like=torch.zeros(2, 1))
    >>> known, values[1].tolist()
    ([False, True], [2.0])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._slots: OrderedDict[int, int] = OrderedDict()
        self._values = torch.empty(0)

    def __len__(self) -> int:
        return len(self._slots)

    def store(self, ids: Sequence[int], values: Tensor) -> None:
        """Keep `values [N, ...]` under `ids`; values of another kind than before start anew."""
        if not self._fits(values):
            self._slots.clear()
            self._values = values.new_empty((0, *values.shape[1:]))
        # A slot or an id that comes twice belongs to its last position.
        owners = {self._slot(sample): position for position, sample in enumerate(ids)}
        missing = len(self._slots) - len(self._values)
        if missing > 0:
            room = min(self.capacity, max(len(self._slots), 2 * len(self._values))) - len(self._values)
            self._values = torch.cat([self._values, values.new_empty((room, *values.shape[1:]))])
        slots, positions = torch.tensor([list(owners), list(owners.values())]).to(values.device)
        self._values.index_copy_(0, slots, values.detach()[positions])

    def recall(self, ids: Sequence[int], like: Tensor) -> tuple[list[bool], Tensor]:
        """Which `ids` are known, and their values, shaped as `like [N, ...]` (no meaning where unknown)."""
        if not len(self) or not self._fits(like):
            return [False] * len(ids), like
        slots = [self._slots.get(sample, -1) for sample in ids]
        return [slot >= 0 for slot in slots], self._values[torch.tensor(slots).to(like.device).clamp_min(0)]

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
