"""What a training is tested on: a split of its source that fits it, or every fifth sample of every class."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from refiner.data.image_dataset import Data
from refiner.data.load import open_data
from refiner.data.splits import TESTS
from refiner.errors import DataError, SettingError


def train_and_test(
    name: str, *, size: int | None = None, classes: Sequence[str] | None = None
) -> tuple[Data, Data]:
    """A source's training and test data; where it has no test split, a fifth of each class is held out.

    A validation split is as good as one; a split that does not fit the training data is an error.

    >>> data, test = train_and_test("sample")
    >>> len(data), len(test), test.split
    (160, 40, 'held out')
    """
    data = open_data(name, size=size, classes=classes)
    if data.split in TESTS:
        return held_out(data)
    for split in TESTS:
        try:
            test = open_data(name, split, size=size, classes=classes)
        except SettingError:  # no such split
            continue
        return data, _fitted(test, data)
    return held_out(data)


def held_out(data: Data) -> tuple[Data, Data]:
    """All but every fifth sample of each class, and those.

    >>> from refiner.data import open_data
    >>> [len(part) for part in held_out(open_data("sample"))]
    [160, 40]
    """
    place = torch.empty_like(data.labels)
    for label in set(data.labels.tolist()):
        chosen = (data.labels == label).nonzero()[:, 0]
        place[chosen] = torch.arange(len(chosen))
    testing = place % 5 == 4
    if not bool(testing.any()):
        raise DataError(f"{data.name}: fewer than five samples of every class, none to test on")
    return _part(data, ~testing, data.split), _part(data, testing, "held out")


def _fitted(test: Data, data: Data) -> Data:
    """The test data with the classes of the training data; an error if they can't have them."""
    told, like = f"{data.name}: {test.split}", f"as in {data.split}"
    if test.images.shape[1:] != data.images.shape[1:]:
        found, wanted = (f"{part.images.shape[3]}×{part.images.shape[2]}" for part in (test, data))
        raise DataError(
            f"{told} has images of {found} pixels, expected {wanted} {like}; set size to make them equal"
        )
    if test.class_names and data.class_names:
        if test.classes != data.classes:
            raise DataError(f"{told} names {test.classes} classes, expected {data.classes} {like}")
        for number, (name, other) in enumerate(zip(test.class_names, data.class_names, strict=True)):
            if name != other:
                raise DataError(f"{told} calls class {number} {name!r}, expected {other!r} {like}")
    highest = int(test.labels.max())
    if highest >= data.classes:
        raise DataError(
            f"{told} holds the label {highest}, expected labels in [0, {data.classes - 1}] {like}"
        )
    return replace(test, classes=data.classes, class_names=data.class_names)


def _part(data: Data, chosen: Tensor, split: str) -> Data:
    return replace(data, images=data.images[chosen], labels=data.labels[chosen], split=split)
