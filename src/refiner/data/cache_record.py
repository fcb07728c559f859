"""Where the cache is, and the record that describes each dataset in it."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from refiner.errors import DataError

RECORD_FILE = "about.json"


@dataclass(frozen=True)
class CachedSplit:
    """The number of images of a split, the shape of one, and the SHA-256 of the content of its arrays."""

    count: int
    shape: tuple[int, ...]
    images_sha256: str
    labels_sha256: str
    attributes_sha256: Mapping[str, str] = field(default_factory=dict)
    """Of each attribute's array, by the attribute's name."""


@dataclass(frozen=True)
class CacheRecord:
    """Description of a dataset in the cache."""

    name: str
    source: str
    """Where it was fetched from, with the checksum."""
    classes: int
    splits: Mapping[str, CachedSplit]
    class_names: tuple[str, ...] = ()
    format: int = 1


def cache_folder() -> Path:
    """The folder of the cache.

    Returns:
        REFINER_CACHE if it is set, else `refiner` in the platform's folder for caches.

    >>> from unittest.mock import patch
    >>> with patch.dict(os.environ, REFINER_CACHE="another/folder"):
    ...     print(cache_folder().as_posix())
    another/folder
    """
    if folder := os.environ.get("REFINER_CACHE"):
        return Path(folder).expanduser()
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "refiner" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "refiner"
    xdg = Path(os.environ.get("XDG_CACHE_HOME") or "~")
    # The XDG specification says that a relative path must be ignored.
    return (xdg if xdg.is_absolute() else Path.home() / ".cache") / "refiner"


def dataset_folder(name: str) -> Path:
    """The folder of a dataset in the cache, whether it exists or not."""
    return cache_folder() / "data" / name


def read_record(name: str) -> CacheRecord | None:
    """The record of a dataset, or None if it is not in the cache; raises if the record is broken."""
    file = dataset_folder(name) / RECORD_FILE
    if not file.exists():
        return None
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        splits = {
            key: CachedSplit(**{**split, "shape": tuple(split["shape"])})
            for key, split in fields["splits"].items()
        }
        record = CacheRecord(**{**fields, "splits": splits, "class_names": tuple(fields["class_names"])})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise cache_error(name, f"{RECORD_FILE} can't be read") from error
    if record.name != name or not splits:
        raise cache_error(name, f"{RECORD_FILE} describes {record.name!r}")
    return record


def cache_error(name: str, reason: str) -> DataError:
    """The error for a dataset in the cache whose files were changed or damaged."""
    return DataError(
        f"{dataset_folder(name)}: damaged, {reason}; fetch it again: refiner data fetch {name} --replace, "
        "with --from or --via as before",
        field="name",
        value=name,
        expected="an undamaged dataset in the cache",
    )
