"""What an attacker may train on: public images, never the victims."""

import os

from torch import Tensor

from refiner import checks
from refiner.data import DATASETS, load_dataset
from refiner.generator.network import SIDE

FIRST_VICTIM = 40_000
"""Victims are CIFAR-10's training images from here on."""

NAMES = tuple(name for name, found in DATASETS.items() if found.size == SIDE and "train" in found.splits)


def load_public(
    name: str, root: str | os.PathLike[str], limit: int | None = None
) -> tuple[Tensor, Tensor, int]:
    """The first `limit` training images as uint8 [N, 3, 32, 32], their labels, the number of classes.

    Of CIFAR-10 there are never more than the first 40,000: the victims of every study lie behind them.

    >>> load_public("cifar10", "folder", limit=40_001)
    Traceback (most recent call last):
    refiner.errors.SettingError: limit = 40001: expected an integer in [1, 40000]
    """
    checks.choice("dataset", name, NAMES)
    most = FIRST_VICTIM if name == "cifar10" else None
    count = most if limit is None else checks.integer("limit", limit, 1, most)
    images, labels = load_dataset(name, "train", root, limit=count)
    return images, labels, DATASETS[name].classes
