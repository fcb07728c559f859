"""A client's training data, with labels that mean the same to the server and to every client."""

from collections.abc import Sequence
from dataclasses import replace

from refiner.data.data_name import OWN_DATA, qualified_name
from refiner.data.image_dataset import ImageDataset
from refiner.data.load import load_data
from refiner.data.train_test_split import load_train_and_test
from refiner.errors import DataError

# Data whose number of classes is not known from their name.
_OWN_DATA = tuple(f"{kind}:" for kind in OWN_DATA)


def load_client_data(
    name: str,
    *,
    hold_out_test: bool = False,
    size: int | None = None,
    classes: Sequence[str] | int | None = None,
) -> ImageDataset:
    """A client's training data. Nothing here depends on a message of a server.

    Args:
        name: The data, by the name or path in `client.json`.
        hold_out_test: Leave out what the server tests on, for experiments in which all sides share one
            source. A real client never evaluates and trains on its whole training split.
        size: Side length that images are resized to.
        classes: The server's class names in its order, by which `folder:` data are numbered; for `npz:`,
            `parquet:` and `arrow:` their number. A real client with data of its own must set it: taken from
            its labels, it would tell a server the highest one.

    Raises:
        DataError: If `classes` is missing, or the labels do not fit it.

    >>> len(load_client_data("sample")), len(load_client_data("sample", hold_out_test=True))
    (200, 160)
    >>> load_client_data("sample", classes=4)
    Traceback (most recent call last):
    refiner.errors.DataError: sample: contains labels beyond classes = 4
    """
    name = qualified_name(name)
    names = None if isinstance(classes, int) else classes
    if name.startswith(_OWN_DATA) and not hold_out_test:
        expected = "the server's class names, in its order"
        if not name.startswith("folder:"):
            expected = "the server's number of classes"
        if classes is None or (names is None) == name.startswith("folder:"):
            raise DataError(
                f'classes: set "classes" in client.json to {expected}',
                field="classes",
                value=classes,
                expected=expected,
            )
    if hold_out_test:
        data, _ = load_train_and_test(name, size=size, classes=names)
    else:
        data = load_data(name, size=size, classes=names)
    if not isinstance(classes, int):
        return data
    if int(data.labels.max()) >= classes:
        raise DataError(
            f"{name}: contains labels beyond classes = {classes}",
            field="classes",
            value=classes,
            expected="the server's number of classes",
        )
    return replace(data, classes=classes, class_names=())
