"""What a client remembers between rounds, in memory only: robust data by sample id, the oldest forgotten."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence

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
        slots = [self._slot(sample) for sample in ids]
        missing = len(self._slots) - len(self._values)
        if missing > 0:
            room = min(self.capacity, max(len(self._slots), 2 * len(self._values))) - len(self._values)
            self._values = torch.cat([self._values, values.new_empty((room, *values.shape[1:]))])
        # A slot or an id that comes twice belongs to its last position.
        owners = dict(zip(slots, range(len(slots)), strict=True))
        if len(owners) < len(slots):
            slots, values = list(owners), values[list(owners.values())]
        self._values.index_copy_(0, torch.tensor(slots).to(values.device), values.detach())

    def recall(self, ids: Sequence[int], like: Tensor) -> tuple[list[bool], Tensor]:
        """Which `ids` are known, and their values, shaped as `like [N, ...]` (no meaning where unknown)."""
        if not len(self) or not self._fits(like):
            return [False] * len(ids), like
        slots = [self._slots.get(sample, -1) for sample in ids]
        return [slot >= 0 for slot in slots], self._values[torch.tensor(slots).to(like.device).clamp_min(0)]

    def state(self) -> dict[str, Tensor]:
        """All that is remembered, the oldest first; empty if nothing is."""
        if not self._slots:
            return {}
        slots = torch.tensor(list(self._slots.values())).to(self._values.device)
        return {"ids": torch.tensor(list(self._slots)), "values": self._values[slots]}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Remember what `state` held, and nothing else."""
        self._slots.clear()
        self._values = torch.empty(0)
        if state:
            self.store(state["ids"].tolist(), state["values"])

    def _fits(self, values: Tensor) -> bool:
        held = self._values
        return (held.shape[1:], held.dtype, held.device) == (values.shape[1:], values.dtype, values.device)

    def _slot(self, sample: int) -> int:
        slot = self._slots.get(sample)
        if slot is not None:
            self._slots.move_to_end(sample)
            return slot
        full = len(self._slots) >= self.capacity
        self._slots[sample] = slot = self._slots.popitem(last=False)[1] if full else len(self._slots)
        return slot
