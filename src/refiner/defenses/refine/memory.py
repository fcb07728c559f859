"""The state of Refiner's warm start: robust data by sample id; the oldest is dropped first."""

import threading
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from refiner.defenses.state import DefenseState


class Lookup(NamedTuple):
    """The result of `RobustDataMemory.lookup`."""

    hits: int
    """How many of the samples are stored."""
    stored: Tensor
    """`[N]`: which of them are stored."""
    values: Tensor
    """`[N, ...]`: their robust data; undefined where a sample is not stored."""
    slots: Tensor | None
    """`[N]`: their slots if all are stored and no id occurs twice, else None."""
    version: int
    """The memory's version: it changes when samples are added or dropped."""


class RobustDataMemory(DefenseState):
    """Robust data of at most `capacity` samples, on the device of the data.

    Args:
        capacity: The number of samples; if more are stored, the oldest are dropped.

    >>> memory = RobustDataMemory(capacity=2)
    >>> memory.store(torch.tensor([1, 2, 3]), torch.arange(3.0)[:, None])
    >>> result = memory.lookup(torch.tensor([1, 3]), like=torch.zeros(2, 1))
    >>> result.stored.tolist(), result.values[1].tolist()
    ([False, True], [2.0])
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # Between a search and the use of its result no other thread may reassign the slots.
        self._lock = threading.Lock()
        self._version = 0
        self._clear(torch.empty(0))

    def __len__(self) -> int:
        return len(self._ids)

    def lookup(self, ids: Tensor, like: Tensor) -> Lookup:
        """What is stored under `ids [N]`, for values of the shape, type and device of `like [N, ...]`."""
        with self._lock:
            if not len(self) or not self._fits(like):
                return Lookup(0, torch.zeros_like(ids, dtype=torch.bool), like, None, self._version)
            stored, slots = self._search(ids)
            # Both counts are read together: reading waits for the GPU.
            count, repeated = torch.stack([stored.sum(), (~_last_occurrences(ids)[1]).sum()]).tolist()
            complete = count == len(ids) and not repeated
            return Lookup(count, stored, self._values[slots], slots if complete else None, self._version)

    def store(self, ids: Tensor, values: Tensor, lookup: Lookup | None = None) -> None:
        """Store `values [N, ...]` under `ids [N]`; values of another shape or type clear the memory first.

        An earlier `lookup` of the same ids saves the search for their slots.
        """
        with self._lock:
            try:
                if lookup is not None and lookup.slots is not None and lookup.version == self._version:
                    self._overwrite(lookup.slots, values)
                else:
                    self._add(ids, values)
            except BaseException:
                # A partial change could assign one sample's data to another.
                self._clear(torch.empty(0))
                raise

    def state_dict(self) -> dict[str, Tensor]:
        """All ids and values, the oldest first; empty if nothing is stored."""
        with self._lock:
            order = self._ages.argsort()
            return {"ids": self._ids[order], "values": self._values[order]} if len(self) else {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the content by that of an earlier `state_dict()`."""
        with self._lock:
            self._clear(torch.empty(0))
        if tensors:
            self.store(tensors["ids"].to(tensors["values"].device), tensors["values"])

    def _clear(self, like: Tensor) -> None:
        self._values = like.new_empty((0, *like.shape[1:]))
        """By slot, with spare slots at the end."""
        self._ids = torch.empty(0, dtype=torch.long, device=like.device)
        self._ages = torch.empty_like(self._ids)
        """When each was stored."""
        self._sorted_ids, self._sorted_slots = self._ids, self._ids
        """The ids in ascending order, and the slot of each."""
        self._clock: int = 0
        self._version += 1

    def _fits(self, values: Tensor) -> bool:
        stored = self._values
        return (stored.shape[1:], stored.dtype, stored.device) == (
            values.shape[1:],
            values.dtype,
            values.device,
        )

    def _search(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which ids are stored, and the slots of those that are."""
        if not len(self):
            return torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids)
        position = torch.searchsorted(self._sorted_ids, ids).clamp_max(len(self) - 1)
        return self._sorted_ids[position] == ids, self._sorted_slots[position]

    def _add(self, ids: Tensor, values: Tensor) -> None:
        if not self._fits(values):
            self._clear(values)
        order, last = _last_occurrences(ids)
        # An id that occurs twice gets its last value.
        selected = order[last].sort().values[-self.capacity :]
        ids, values = ids[selected], values[selected]
        stored, slots = self._search(ids)
        new = int((~stored).sum())
        if new:
            self._ages[slots[stored]] = self._clock
            slots[~stored] = self._free_slots(new)
            self._ids[slots] = ids
            self._sorted_ids, self._sorted_slots = self._ids.sort()
            self._version += 1
        self._overwrite(slots, values)

    def _overwrite(self, slots: Tensor, values: Tensor) -> None:
        """Put new values into slots and mark them as the youngest."""
        self._ages[slots] = torch.arange(self._clock, self._clock + len(slots), device=slots.device)
        self._clock += len(slots)
        self._values.index_copy_(0, slots, values.detach())

    def _free_slots(self, count: int) -> Tensor:
        """Slots for `count` new samples: unused ones first, then those of the oldest samples."""
        size = len(self)
        total = min(self.capacity, size + count)
        unused = torch.arange(size, total, device=self._ids.device)
        oldest = self._ages.argsort()[: count - len(unused)]
        if len(unused):
            self._ids, self._ages = torch.cat([self._ids, unused]), torch.cat([self._ages, unused])
            if total > len(self._values):
                growth = min(self.capacity, max(total, 2 * len(self._values))) - len(self._values)
                spare = self._values.new_empty((growth, *self._values.shape[1:]))
                self._values = torch.cat([self._values, spare])
        return torch.cat([unused, oldest])


def _last_occurrences(ids: Tensor) -> tuple[Tensor, Tensor]:
    """The order that sorts the ids, and which of the sorted ids are the last occurrence of their value."""
    ascending, order = ids.sort(stable=True)
    last = torch.ones_like(ascending, dtype=torch.bool)
    last[:-1] = ascending[1:] != ascending[:-1]
    return order, last
