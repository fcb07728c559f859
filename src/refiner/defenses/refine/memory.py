"""What a client remembers between rounds, in memory only: robust data by sample id, the oldest forgotten."""

import threading
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor


class Found(NamedTuple):
    """What a memory knows of some samples, when it was asked."""

    held: int
    """How many of them it holds."""
    known: Tensor
    """`[N]`: which."""
    values: Tensor
    """`[N, ...]`; no meaning where a sample is not known."""
    slots: Tensor | None
    """`[N]`: where they lie, if all are known and none comes twice."""
    version: int
    """Of the memory; another one when samples have come or gone."""


class Memory:
    """Robust data of at most `capacity` samples, all of it on the device of the data.

    >>> memory = Memory(capacity=2)
    >>> memory.store(torch.tensor([1, 2, 3]), torch.arange(3.0)[:, None])
    >>> found = memory.find(torch.tensor([1, 3]), like=torch.zeros(2, 1))
    >>> found.known.tolist(), found.values[1].tolist()
    ([False, True], [2.0])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # Between a search and what it finds, another thread must not give the place away.
        self._lock = threading.Lock()
        self._version = 0
        self._start(torch.empty(0))

    def __len__(self) -> int:
        return len(self._ids)

    def find(self, ids: Tensor, like: Tensor) -> Found:
        """What is held under `ids [N]` of values like `like [N, ...]`."""
        with self._lock:
            if not len(self) or not self._fits(like):
                return Found(0, torch.zeros_like(ids, dtype=torch.bool), like, None, self._version)
            known, slots = self._search(ids)
            # One look at the GPU, which waits for it.
            held, repeated = torch.stack([known.sum(), (~_last(ids)[1]).sum()]).tolist()
            alone = held == len(ids) and not repeated
            return Found(held, known, self._values[slots], slots if alone else None, self._version)

    def store(self, ids: Tensor, values: Tensor, found: Found | None = None) -> None:
        """Keep `values [N, ...]` under `ids [N]`; values of another kind than before start anew.

        What `find` said of the same ids saves the search for them.
        """
        with self._lock:
            try:
                if found is not None and found.slots is not None and found.version == self._version:
                    self._renew(found.slots, values)
                else:
                    self._add(ids, values)
            except BaseException:
                # Half of a change would give one sample's data to another.
                self._start(torch.empty(0))
                raise

    def state(self) -> dict[str, Tensor]:
        """All that is remembered, the oldest first; empty if nothing is."""
        with self._lock:
            order = self._ages.argsort()
            return {"ids": self._ids[order], "values": self._values[order]} if len(self) else {}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Remember what `state` held, and nothing else."""
        with self._lock:
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

    def _search(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which ids are known, and the slots of those that are."""
        if not len(self):
            return torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids)
        at = torch.searchsorted(self._rising, ids).clamp_max(len(self) - 1)
        return self._rising[at] == ids, self._places[at]

    def _add(self, ids: Tensor, values: Tensor) -> None:
        if not self._fits(values):
            self._start(values)
        order, last = _last(ids)
        # An id that comes twice has its last value.
        kept = order[last].sort().values[-self.capacity :]
        ids, values = ids[kept], values[kept]
        known, slots = self._search(ids)
        fresh = int((~known).sum())
        if fresh:
            self._ages[slots[known]] = self._clock
            slots[~known] = self._room(fresh)
            self._ids[slots] = ids
            self._rising, self._places = self._ids.sort()
            self._version += 1
        self._renew(slots, values)

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


def _last(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The order in which ids rise, and which of them there are the last of their kind."""
    rising, order = ids.sort(stable=True)
    last = torch.ones_like(rising, dtype=torch.bool)
    last[:-1] = rising[1:] != rising[:-1]
    return order, last
