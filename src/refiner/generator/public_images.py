"""The images that an attacker may train a generator on: public ones, never the victims."""

import os

from torch import Tensor

from refiner import checks
from refiner.data import DATASETS, load_data
from refiner.generator.network import SIDE

FIRST_VICTIM = 40_000
"""Victims are CIFAR-10's training images from this index on."""

NAMES = tuple(name for name, info in DATASETS.items() if info.size == SIDE and "train" in info.counts)


def load_public_images(
    name: str, root: str | os.PathLike[str], limit: int | None = None
) -> tuple[Tensor, Tensor, int]:
    """Return the first training images of a dataset, their labels and the number of classes.

    At most the first 40,000 of CIFAR-10: the later ones are the victims of every study.

    Args:
        name: One of `NAMES`.
        root: The folder with the dataset's files.
        limit: How many images; None for all that are allowed.

    Returns:
        Images uint8 `[N, 3, 32, 32]`, labels `[N]` and the number of classes.

    Raises:
        SettingError: The dataset is unknown or `limit` is out of range.

    >>> load_public_images("cifar10", "folder", limit=40_001)
    Traceback (most recent call last):
    refiner.errors.SettingError: limit = 40001: expected an integer in [1, 40000]
    """
    checks.choice("dataset", name, NAMES)
    available = FIRST_VICTIM if name == "cifar10" else None
    count = available if limit is None else checks.integer("limit", limit, 1, available)
    data = load_data(name, "train", root=root, limit=count)
    return data.images, data.labels, DATASETS[name].classes
