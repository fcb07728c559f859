"""The cache: where it lies, and what a source's folder in it says of itself."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from refiner.errors import DataError

RECORD = "about.json"


@dataclass(frozen=True)
class Split:
    """One split: how many images of which shape, and the SHA-256 of the arrays' content."""

    count: int
    shape: tuple[int, ...]
    images_sha256: str
    labels_sha256: str


@dataclass(frozen=True)
class Record:
    """What lies in a folder of the cache."""

    name: str
    source: str
    """Where it was taken from, and with which checksum."""
    classes: int
    splits: Mapping[str, Split]
    class_names: tuple[str, ...] = ()
    format: int = 1


def cache_folder() -> Path:
    """REFINER_CACHE, or `refiner` in the folder that the platform has for caches.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, REFINER_CACHE="somewhere/else"):
    ...     print(cache_folder().as_posix())
    somewhere/else
    """
    if own := os.environ.get("REFINER_CACHE"):
        return Path(own).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "refiner" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "refiner"
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or "~")
    # The convention says that a relative path counts for nothing.
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "refiner"


def data_folder(name: str) -> Path:
    """Where a source lies, or would lie, in the cache."""
    return cache_folder() / "data" / name


def read_record(name: str) -> Record | None:
    """The record of a source, or None if it is not in the cache."""
    file = data_folder(name) / RECORD
    if not file.exists():
        return None
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        splits = {
            key: Split(**{**each, "shape": tuple(each["shape"])}) for key, each in held["splits"].items()
        }
        record = Record(**{**held, "splits": splits, "class_names": tuple(held["class_names"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise corrupt(name, f"{RECORD} can't be read") from error
    if record.name != name or not splits:
        raise corrupt(name, f"{RECORD} is of {record.name!r}")
    return record


def corrupt(name: str, what: str) -> DataError:
    """The error for a cache that was changed."""
    return DataError(
        f"{data_folder(name)}: broken, {what}; get it anew: refiner data get {name} --replace, "
        "with --from or --via as before"
    )
