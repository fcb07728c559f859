"""The data sets of the experiments, read from local files: one table of sources, one reader a layout."""

import json
import os
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from refiner.checks import choice, integer
from refiner.data.decode import decode, decode_blob, load_arrays
from refiner.data.readers.lfw import people
from refiner.data.sheet import read_sheet
from refiner.errors import DataError

_PER_FILE = 10_000
Labels = NDArray[Any]
Reader = Callable[[Path, "Split", int | None], tuple[Tensor, Labels]]


@dataclass(frozen=True)
class Split:
    """Where one split lies: its pixel files in order, its label file and the array in it."""

    reader: Reader
    files: tuple[str, ...]
    labels: str
    key: str = ""
    part: str = ""
    """`train` or `test` where the source has no split of its own and one is made by `group`."""
    group: str = ""


@dataclass(frozen=True)
class Dataset:
    """A data set: its number of classes, the side of its square images and its splits."""

    classes: int
    size: int
    splits: dict[str, Split]


def load_dataset(
    name: str, split: str, root: str | os.PathLike[str], limit: int | None = None
) -> tuple[Tensor, Tensor]:
    """The first `limit` images of a split as uint8 [N, 3, H, W] and their labels as int64 [N].

    >>> load_dataset("cifar10", "train", "absent", limit=5)
    Traceback (most recent call last):
    refiner.errors.DataError: absent/train_lables.json: no such file
    """
    dataset = DATASETS[choice("name", name, DATASETS)]
    where = dataset.splits[choice("split", split, dataset.splits)]
    limit = None if limit is None else integer("limit", limit, 1)
    images, labels = where.reader(Path(root), where, limit)
    targets = torch.from_numpy(np.asarray(labels).reshape(-1).astype(np.int64))
    if len(images) != len(targets):
        raise DataError(f"{name} {split}: {len(images)} images, but {len(targets)} labels")
    if tuple(images.shape[1:]) != (3, dataset.size, dataset.size):
        side = dataset.size
        raise DataError(f"{name} {split}: images of {list(images.shape[1:])}, expected [3, {side}, {side}]")
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= dataset.classes:
        raise DataError(f"{name} {split}: labels in [{low}, {high}], expected [0, {dataset.classes - 1}]")
    return images, targets


def _arrays(file: Path, *keys: str) -> list[Labels]:
    """The arrays of an `.npz` that a reader needs, none of them empty."""
    held = load_arrays(file)
    for key in keys:
        if key not in held or held[key].size == 0:
            raise DataError(f"{file}: no array '{key}'")
    return [held[key] for key in keys]


def _read_rows(root: Path, split: Split, limit: int | None) -> tuple[Tensor, Labels]:
    """PNGs with one image a row, 1,024 pixels each, and labels in JSON."""
    file = root / split.labels
    if not file.is_file():
        raise DataError(f"{file}: no such file")
    try:
        labels = np.array(json.loads(file.read_text(encoding="utf-8")), dtype=np.int64)[:limit]
    except (ValueError, TypeError) as error:
        raise DataError(f"{file}: not a list of labels") from error
    parts = []
    for number, name in enumerate(split.files[: -(-len(labels) // _PER_FILE)]):
        pixels = decode(root / name, str(root / name))
        if pixels.shape != (_PER_FILE, 1024, 3):
            raise DataError(f"{root / name}: {pixels.shape[1]}×{pixels.shape[0]} pixels, expected 1024×10000")
        wanted = pixels[: len(labels) - number * _PER_FILE]
        parts.append(np.ascontiguousarray(wanted.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)))
    return torch.from_numpy(np.concatenate(parts)), labels


def in_test(groups: Sequence[str] | Labels) -> NDArray[np.bool_]:
    """Which members are tested on: about a fifth of the groups, by hash, so that none is on both sides.

    >>> in_test(["lesion 6", "lesion 7", "lesion 6"]).tolist()
    [False, True, False]
    """
    return np.array([zlib.crc32(str(group).encode()) % 5 == 0 for group in groups])


def _read_sheets(root: Path, split: Split, limit: int | None) -> tuple[Tensor, Labels]:
    """Lossless sheets of 10,000 images of 32×32, 100 a row, and labels in an `.npz`."""
    labels, *groups = _arrays(root / split.labels, split.key, *([split.group] if split.part else []))
    chosen = np.arange(min(len(labels), _PER_FILE * len(split.files)))
    if split.part:
        testing = in_test(groups[0])
        chosen = np.flatnonzero(testing if split.part == "test" else ~testing)
    chosen = chosen[:limit]
    end = int(chosen[-1]) + 1
    sheets = [
        read_sheet(root / name, min(_PER_FILE, end - start), size=32)
        for name, start in zip(split.files, range(0, end, _PER_FILE), strict=False)
    ]
    return torch.cat(sheets)[torch.from_numpy(chosen)], labels[chosen]


def _read_stack(root: Path, split: Split, limit: int | None) -> tuple[Tensor, Labels]:
    """An `.npz` of pixels [N, H, W, 3] and labels."""
    images, labels = _arrays(root / split.files[0], "test_images", split.key)
    return torch.from_numpy(np.ascontiguousarray(images[:limit].transpose(0, 3, 1, 2))), labels[:limit]


def _read_blob(root: Path, split: Split, limit: int | None) -> tuple[Tensor, Labels]:
    """An `.npz` of JPEGs laid end to end."""
    file = root / split.files[0]
    blob, offsets, labels = _arrays(file, "blob", "offsets", split.key)
    images = decode_blob(blob, offsets, str(file), limit)
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2))), labels[:limit]


def _read_faces(root: Path, split: Split, limit: int | None) -> tuple[Tensor, Labels]:
    """Sheets of faces, and their file names, which tell whose they are."""
    (files,) = _arrays(root / split.labels, split.key)
    labels = np.array(people([str(file) for file in files])[1], dtype=np.int64)[:limit]
    sheets = [
        read_sheet(root / name, min(_PER_FILE, len(labels) - start), size=32)
        for name, start in zip(split.files, range(0, len(labels), _PER_FILE), strict=False)
    ]
    return torch.cat(sheets), labels


def _sheets(stem: str, count: int) -> tuple[str, ...]:
    return tuple(f"{stem}_{number}.webp" for number in range(count))


_HAM = (_sheets("ham10000_32", 2), "ham10000_labels.npz", "y")
_PATH, _TINY = "pathmnist_test_subset718.npz", "tiny_imagenet_val_jpegs.npz"

DATASETS: dict[str, Dataset] = {
    "cifar10": Dataset(
        10,
        32,
        {
            "train": Split(
                _read_rows, tuple(f"data_batch_{n}.png" for n in range(1, 6)), "train_lables.json"
            ),
            "test": Split(_read_rows, ("test_batch.png",), "test_lables.json"),
        },
    ),
    "cifar100": Dataset(
        100,
        32,
        {
            "train": Split(_read_sheets, _sheets("cifar100_train", 5), "cifar100_labels.npz", "y_train"),
            "test": Split(_read_sheets, _sheets("cifar100_test", 1), "cifar100_labels.npz", "y_test"),
        },
    ),
    "svhn": Dataset(
        10,
        32,
        {
            "train": Split(_read_sheets, _sheets("svhn_train", 4), "svhn_labels.npz", "y_train"),
            "test": Split(_read_sheets, _sheets("svhn_test", 1), "svhn_labels.npz", "y_test"),
        },
    ),
    "ham10000": Dataset(
        7,
        32,
        {part: Split(_read_sheets, *_HAM, part=part, group="lesion_id") for part in ("train", "test")},
    ),
    "pathmnist": Dataset(9, 28, {"test": Split(_read_stack, (_PATH,), _PATH, "test_labels")}),
    "tiny-imagenet": Dataset(200, 64, {"val": Split(_read_blob, (_TINY,), _TINY, "label")}),
    "lfw": Dataset(5749, 32, {"all": Split(_read_faces, _sheets("lfw_32", 2), "lfw_labels.npz", "names")}),
}
"""Every known data set by name; `path` is short for `pathmnist`."""
DATASETS["path"] = DATASETS["pathmnist"]
