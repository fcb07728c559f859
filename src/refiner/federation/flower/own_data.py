"""The data of a client: all of its own, in classes that mean the same to the server and to every client."""

from collections.abc import Sequence

from refiner.data.holdout import train_and_test
from refiner.data.image_dataset import Data
from refiner.data.load import open_data
from refiner.errors import DataError


def client_data(
    name: str,
    asked: int,
    *,
    study: bool = False,
    size: int | None = None,
    classes: Sequence[str] | None = None,
) -> Data:
    """A client's training data, for a model of as many classes as the server asks for.

    A node never tests: it trains on its whole training split. Only in a study, where all have one source, is
    what the server tests on left out.

    >>> len(client_data("sample", 10)), len(client_data("sample", 10, study=True))
    (200, 160)
    >>> client_data("sample", 4)
    Traceback (most recent call last):
    refiner.errors.DataError: sample: holds the label 9, expected labels in [0, 3] as the server asks for
    """
    if study:
        data, _ = train_and_test(name, size=size, classes=classes)
    else:
        data = open_data(name, size=size, classes=classes)
    # A folder's numbers are places in a list of names: in a list of another length they mean something else.
    if name.startswith("folder:") and data.classes != asked:
        if classes is not None:
            raise DataError(
                f"classes: {len(classes)} names, expected {asked}, as many as the server asks for"
            )
        raise DataError(
            f'{name}: classes = {data.classes}, the server asks for {asked}; set "classes" in client.json '
            "to the names of the server's, in its order"
        )
    highest = int(data.labels.max())
    if highest >= asked:
        raise DataError(
            f"{name}: holds the label {highest}, expected labels in [0, {asked - 1}] as the server asks for"
        )
    return data
