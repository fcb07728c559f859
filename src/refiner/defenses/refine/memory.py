"""What a client remembers between rounds, in memory only: robust data by sample id, the oldest forgotten."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Found(NamedTuple):
    """What a memory knows of some samples."""

    known: Tensor
    """`[N]`: whether it holds each."""
    slots: Tensor
    """`[N]`: where, for those it holds."""
    version: int
    """Of the memory, which changes when samples come or go."""


class Memory:
    """Robust data of at most `capacity` samples, all of it on the device of the data.

    >>> memory = Memory(capacity=2)
    >>> memory.store(torch.tensor([1, 2, 3]), torch.arange(3.0)[:, None])
    >>> found = memory.find(torch.tensor([1, 3]), like=torch.zeros(2, 1))
    >>> found.known.tolist(), memory.recall(found)[1].tolist()
    ([False, True], [2.0])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._version = 0
        self._start(torch.empty(0))

    def __len__(self) -> int:
        return len(self._ids)

    def store(self, ids: Tensor, values: Tensor, found: Found | None = None) -> None:
        """Keep `values [N, ...]` under `ids [N]`; values of another kind than before start anew.

        `found` may be given if `find` knew all of these ids: it saves the search for them. An id that comes
        twice then has one of its values; robust data of one sample are the same wherever it stands.
        """
        if found is not None and found.version == self._version:
            return self._renew(found.slots, values)
        if not self._fits(values):
            self._start(values)
        rising, order = ids.sort(stable=True)
        last = torch.ones_like(rising, dtype=torch.bool)
        last[:-1] = rising[1:] != rising[:-1]
        known, slots, _ = self._find(ids)
        # One look at the GPU, which waits for it.
        repeated, fresh = torch.stack([(~last).sum(), (~known).sum()]).tolist()
        if repeated or len(ids) > self.capacity:
            # An id that comes twice has its last value.
            kept = order[last].sort().values[-self.capacity :]
            return self.store(ids[kept], values[kept])
        if fresh:
            self._ages[slots[known]] = self._clock
            slots[~known] = self._room(fresh)
            self._ids[slots] = ids
            self._rising, self._places = self._ids.sort()
            self._version += 1
        self._renew(slots, values)

    def find(self, ids: Tensor, like: Tensor) -> Found:
        """Which `ids [N]` it holds with values like `like [N, ...]`."""
        if self._fits(like):
            return self._find(ids)
        return Found(torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids), self._version)

    def recall(self, found: Found) -> Tensor:
        """The values of what was just found; no meaning where a sample is not known."""
        return self._values[found.slots]

    def state(self) -> dict[str, Tensor]:
        """All that is remembered, the oldest first; empty if nothing is."""
        if not len(self):
            return {}
        order = self._ages.argsort()
        return {"ids": self._ids[order], "values": self._values[order]}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Remember what `state` held, and nothing else."""
        self._start(torch.empty(0))
        if state:
            self.store(state["ids"].to(state["values"].device), state["values"])

    def _start(self, like: Tensor) -> None:
        self._values = like.new_empty((0, *like.shape[1:]))
        """By slot, with room for more."""
        self._ids = torch.empty(0, dtype=torch.long, device=like.device)
        self._ages = torch.empty_like(self._ids)
        """When each was stored."""
        self._rising, self._places = self._ids, self._ids
        """The ids in rising order, and where each is."""
        self._clock: int = 0
        self._version += 1

    def _fits(self, values: Tensor) -> bool:
        held = self._values
        return (held.shape[1:], held.dtype, held.device) == (values.shape[1:], values.dtype, values.device)

    def _find(self, ids: Tensor) -> Found:
        if not len(self):
            return Found(torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids), self._version)
        at = torch.searchsorted(self._rising, ids).clamp_max(len(self) - 1)
        return Found(self._rising[at] == ids, self._places[at], self._version)

    def _renew(self, slots: Tensor, values: Tensor) -> None:
        """Put new values into slots; they are the youngest now."""
        self._ages[slots] = torch.arange(self._clock, self._clock + len(slots), device=slots.device)
        self._clock += len(slots)
        self._values.index_copy_(0, slots, values.detach())

    def _room(self, count: int) -> Tensor:
        """Slots for so many new samples: those behind the last, then those of the oldest."""
        held = len(self)
        total = min(self.capacity, held + count)
        behind = torch.arange(held, total, device=self._ids.device)
        oldest = self._ages.argsort()[: count - len(behind)]
        if len(behind):
            self._ids, self._ages = torch.cat([self._ids, behind]), torch.cat([self._ages, behind])
            if total > len(self._values):
                room = min(self.capacity, max(total, 2 * len(self._values))) - len(self._values)
                more = self._values.new_empty((room, *self._values.shape[1:]))
                self._values = torch.cat([self._values, more])
        return torch.cat([behind, oldest])
