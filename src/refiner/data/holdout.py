"""A test set where a source has none: every fifth sample of every class."""

from dataclasses import replace

import torch
from torch import Tensor

from refiner.data.form import Data
from refiner.data.open import open_data
from refiner.errors import DataError, SettingError

_TESTS = ("test", "val")


def train_and_test(name: str, *, size: int | None = None) -> tuple[Data, Data]:
    """A source's training and test data; where it has no test split, a fifth of each class is held out.

    >>> data, test = train_and_test("sample")
    >>> len(data), len(test), test.split
    (160, 40, 'held out')
    """
    data = open_data(name, size=size)
    if data.split in _TESTS:
        return held_out(data)
    for split in _TESTS:
        try:
            return data, open_data(name, split, size=size)
        except SettingError:  # no such split
            continue
    return held_out(data)


def held_out(data: Data) -> tuple[Data, Data]:
    """All but every fifth sample of each class, and those.

    >>> from refiner.data import open_data
    >>> [len(part) for part in held_out(open_data("sample"))]
    [160, 40]
    """
    place = torch.empty_like(data.labels)
    for label in range(data.classes):
        chosen = (data.labels == label).nonzero()[:, 0]
        place[chosen] = torch.arange(len(chosen))
    testing = place % 5 == 4
    if not bool(testing.any()):
        raise DataError(f"{data.name}: fewer than five samples of every class, none to test on")
    return _part(data, ~testing, data.split), _part(data, testing, "held out")


def _part(data: Data, chosen: Tensor, split: str) -> Data:
    return replace(data, images=data.images[chosen], labels=data.labels[chosen], split=split)
