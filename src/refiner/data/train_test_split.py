"""Training and test data: the test split of a dataset, or every fifth sample of every class."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from refiner.data.image_dataset import ImageDataset
from refiner.data.load import load_data
from refiner.data.splits import TEST_SPLITS
from refiner.errors import DataError, SettingError


def load_train_and_test(
    name: str, *, size: int | None = None, classes: Sequence[str] | None = None
) -> tuple[ImageDataset, ImageDataset]:
    """The training and test data of a dataset.

    The test data are the test split, or else the validation split; without either, a fifth of each class is
    held out of the training data.

    Args:
        name: A name as for `load_data`.
        size: As for `load_data`.
        classes: As for `load_data`.

    Returns:
        The training data and the test data.

    Raises:
        DataError: If the test split does not match the training split in image size or classes.

    >>> train, test = load_train_and_test("sample")
    >>> len(train), len(test), test.split
    (160, 40, 'held out')
    """
    train = load_data(name, size=size, classes=classes)
    if train.split in TEST_SPLITS:
        return hold_out(train)
    for split in TEST_SPLITS:
        try:
            test = load_data(name, split, size=size, classes=classes)
        except SettingError:  # this split does not exist
            continue
        return train, _match_classes(test, train)
    return hold_out(train)


def hold_out(data: ImageDataset) -> tuple[ImageDataset, ImageDataset]:
    """Splits off every fifth sample of each class.

    Args:
        data: The samples.

    Returns:
        The samples to train on, and those held out.

    Raises:
        DataError: If no class has five samples.

    >>> [len(part) for part in hold_out(load_data("sample"))]
    [160, 40]
    """
    position_in_class = torch.empty_like(data.labels)
    for label in set(data.labels.tolist()):
        members = (data.labels == label).nonzero()[:, 0]
        position_in_class[members] = torch.arange(len(members))
    is_test = position_in_class % 5 == 4
    if not bool(is_test.any()):
        raise DataError(
            f"{data.name}: no class has five samples, so there are none to test on",
            field="data",
            value=f"{len(data)} samples",
            expected="a class of at least five samples",
        )
    return data.subset(~is_test), data.subset(is_test, split="held out")


def _match_classes(test: ImageDataset, train: ImageDataset) -> ImageDataset:
    """The test data with the classes of the training data; raises if the two do not match."""
    title, reference = f"{train.name}: {test.split}", f"as in {train.split}"
    if test.images.shape[1:] != train.images.shape[1:]:
        test_size, train_size = (f"{part.images.shape[3]}×{part.images.shape[2]}" for part in (test, train))
        raise DataError(
            f"{title} has images of {test_size} pixels, expected {train_size} {reference}; "
            "set size to make them equal",
            field="size",
            value=None,  # size was not given
            expected=train_size,
        )
    if test.class_names and train.class_names:
        if test.classes != train.classes:
            raise DataError(
                f"{title} names {test.classes} classes, expected {train.classes} {reference}",
                field="classes",
                value=test.classes,
                expected=str(train.classes),
            )
        for number, (name, expected) in enumerate(zip(test.class_names, train.class_names, strict=True)):
            if name != expected:
                raise DataError(
                    f"{title} calls class {number} {name!r}, expected {expected!r} {reference}",
                    field="class_names",
                    value=name,
                    expected=expected,
                )
    highest = int(test.labels.max())
    if highest >= train.classes:
        raise DataError(
            f"{title} contains the label {highest}, expected labels in [0, {train.classes - 1}] {reference}",
            field="labels",
            value=highest,
            expected=f"labels in [0, {train.classes - 1}]",
        )
    return replace(test, classes=train.classes, class_names=train.class_names)
