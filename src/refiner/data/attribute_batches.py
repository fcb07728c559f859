"""Batches of clients who differ in an attribute: all images with one value of it, or a mixture of two."""

from collections.abc import Sequence

import torch
from torch import Tensor

from refiner.checks import integer
from refiner.errors import DataError


def batches_of_one_value(values: Tensor, groups: Tensor, size: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Return batches whose images all have the same value of an attribute, 0 or 1.

    A batch is filled with one group after the other, such as the images of one person after another's. No
    group is in two batches, so that clients are independent.

    Args:
        values: The attribute of every image, int64 `[N]`; those that are neither 0 nor 1 are left out.
        groups: The group of every image, int64 `[N]`.
        size: Images in a batch.
        seed: Seed of the order of groups and images.

    Returns:
        The images' numbers `[n, size]` and the value of each batch `[n]`, in a random order.

    Raises:
        DataError: The tensors do not fit each other.
        SettingError: `size` is not an integer ≥ 1.

    >>> values, groups = torch.tensor([0, 0, 1, 1, 1, 1]), torch.tensor([0, 0, 1, 1, 1, 2])
    >>> batches, value = batches_of_one_value(values, groups, 2, seed=0)
    >>> sorted(value.tolist()), values[batches[value == 0]].tolist()
    ([0, 1], [[0, 0]])
    """
    generator = _checked(values, groups, size, seed)
    found: list[Tensor] = []
    value_of: list[int] = []
    for value in (0, 1):
        stream = _GroupStream(values, groups, value, generator)
        while (batch := stream.take(size)) is not None:
            found.append(batch)
            value_of.append(value)
    order = torch.randperm(len(found), generator=generator)
    batches = torch.stack(found) if found else torch.empty(0, size, dtype=torch.long)
    return batches[order], torch.tensor(value_of, dtype=torch.long)[order]


def batches_of_mixed_values(values: Tensor, groups: Tensor, size: int, *, seed: int) -> Tensor:
    """Return batches in which the number of images with value 1 is drawn uniformly from 0 to `size`.

    Args:
        values: As in `batches_of_one_value`.
        groups: As in `batches_of_one_value`.
        size: Images in a batch.
        seed: Seed of the shares and of the order of groups and images.

    Returns:
        The images' numbers `[n, size]`, as many batches as there are groups for.

    Raises:
        DataError: The tensors do not fit each other.
        SettingError: `size` is not an integer ≥ 1.

    >>> values, groups = torch.arange(40) % 2, torch.arange(40)
    >>> batches = batches_of_mixed_values(values, groups, 4, seed=0)
    >>> batches.shape[1], len(batches.unique()) == batches.numel()
    (4, True)
    """
    generator = _checked(values, groups, size, seed)
    zeros, ones = (_GroupStream(values, groups, value, generator) for value in (0, 1))
    batches: list[Tensor] = []
    while True:
        count = int(torch.randint(0, size + 1, (), generator=generator))
        parts = [zeros.take(size - count), ones.take(count)]
        whole = [part for part in parts if part is not None]
        if len(whole) < 2:
            return torch.stack(batches) if batches else torch.empty(0, size, dtype=torch.long)
        batches.append(torch.cat(whole))


class _GroupStream:
    """The images with one value, a shuffled group after the other; each group serves one batch only."""

    def __init__(self, values: Tensor, groups: Tensor, value: int, generator: torch.Generator) -> None:
        numbers = (values == value).nonzero()[:, 0]
        numbers = numbers[torch.randperm(len(numbers), generator=generator)]
        members: dict[int, list[int]] = {}
        for number, group in zip(numbers.tolist(), groups[numbers].tolist(), strict=True):
            members.setdefault(group, []).append(number)
        # The first image of a large group comes early: groups have an order of their own.
        names = sorted(members)
        order = torch.randperm(len(names), generator=generator).tolist()
        self._groups: Sequence[list[int]] = [members[names[i]] for i in order]
        self._next = 0

    def take(self, count: int) -> Tensor | None:
        """The next `count` images, from groups that no other batch has; None if there are too few."""
        taken: list[int] = []
        while len(taken) < count:
            if self._next == len(self._groups):
                return None
            taken += self._groups[self._next][: count - len(taken)]
            self._next += 1
        return torch.tensor(taken, dtype=torch.long)


def _checked(values: Tensor, groups: Tensor, size: int, seed: int) -> torch.Generator:
    integer("size", size, 1)
    for field, tensor in (("values", values), ("groups", groups)):
        if tensor.dtype != torch.long or tensor.shape != values.shape or tensor.ndim != 1:
            raise DataError(field=field, value=tensor, expected=f"torch.int64 [{len(values)}]")
    return torch.Generator().manual_seed(integer("seed", seed, 0))
