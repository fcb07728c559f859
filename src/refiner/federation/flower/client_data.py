"""A client's training data, with labels that mean the same to the server and to every client."""

from collections.abc import Sequence

from refiner.data.image_dataset import ImageDataset
from refiner.data.load import load_data
from refiner.data.train_test_split import load_train_and_test
from refiner.errors import DataError


def load_client_data(
    name: str,
    expected_classes: int,
    *,
    hold_out_test: bool = False,
    size: int | None = None,
    classes: Sequence[str] | None = None,
) -> ImageDataset:
    """A client's training data, for a model with as many classes as the server expects.

    Args:
        name: The data, by the name or path in `client.json`.
        expected_classes: Number of classes of the server's model.
        hold_out_test: Leave out what the server tests on, for experiments in which all sides share one
            source. A real client never evaluates and trains on its whole training split.
        size: Side length that images are resized to.
        classes: The server's class names in its order, by which `folder:` data are numbered.

    Raises:
        DataError: If the labels do not fit the server's classes.

    >>> len(load_client_data("sample", 10)), len(load_client_data("sample", 10, hold_out_test=True))
    (200, 160)
    >>> load_client_data("sample", 4)
    Traceback (most recent call last):
    refiner.errors.DataError: sample: contains label 9, the server's model has labels in [0, 3]
    """
    if hold_out_test:
        data, _ = load_train_and_test(name, size=size, classes=classes)
    else:
        data = load_data(name, size=size, classes=classes)
    # The labels of a folder are positions in a list of names. In a list of another length they have another
    # meaning.
    if name.startswith("folder:") and data.classes != expected_classes:
        if classes is not None:
            raise DataError(
                f"classes: {len(classes)} names, the server's model has {expected_classes} classes",
                field="classes",
                value=list(classes),
                expected=f"{expected_classes} names",
            )
        raise DataError(
            f"{name}: {data.classes} classes, the server's model has {expected_classes}; set "
            '"classes" in client.json to the server\'s class names, in its order',
            field="data",
            value=name,
            expected=f"{expected_classes} classes",
        )
    highest = int(data.labels.max())
    if highest >= expected_classes:
        raise DataError(
            f"{name}: contains label {highest}, the server's model has labels in [0, {expected_classes - 1}]",
            field="data",
            value=name,
            expected=f"labels in [0, {expected_classes - 1}]",
        )
    return data
