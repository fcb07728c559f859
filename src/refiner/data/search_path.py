"""Datasets in the folders listed by the environment variable REFINER_DATA."""

import os
from collections.abc import Mapping
from pathlib import Path

from refiner.data.catalogue import find_splits
from refiner.data.readers.source_split import SourceSplit


def data_folders() -> list[Path]:
    """The folders in REFINER_DATA, a list like PATH.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, REFINER_DATA=os.pathsep.join(["a", "b"])):
    ...     [folder.name for folder in data_folders()]
    ['a', 'b']
    """
    listed = os.environ.get("REFINER_DATA", "").split(os.pathsep)
    return [Path(folder).expanduser() for folder in listed if folder]


def find_in_data_folders(name: str) -> Mapping[str, SourceSplit] | None:
    """The splits of a dataset in the first of these folders that has it in a known layout, else None."""
    for folder in data_folders():
        if folder.exists() and (splits := find_splits(name, folder)):
            return splits
    return None
