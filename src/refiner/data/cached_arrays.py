"""Datasets in the cache: memory-mapped arrays, each dataset written completely or not at all."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from refiner.data.cache_record import RECORD_FILE, CachedSplit, CacheRecord, cache_error, dataset_folder
from refiner.data.disk_space import disk_errors, require_free_space
from refiner.data.image_dataset import ImageDataset
from refiner.data.readers.source_split import ImageBlock, SourceSplit, checked_blocks
from refiner.errors import DataError

_HASH_BLOCK = 2**24
Progress = Callable[[str, int, int], None]
"""Called with a description of the step, how much is done, and how much there is in total (0 if unknown)."""


def write_to_cache(
    record: CacheRecord,
    splits: Mapping[str, SourceSplit],
    side: int,
    on_progress: Progress | None = None,
    *,
    replace_existing: bool = False,
) -> Path:
    """Writes the splits to the cache, moves them into place in one step, and returns their folder.

    `record` gives name, source and classes; its splits are filled in. An existing dataset is kept, or with
    `replace_existing` kept until the new one is complete.
    """
    folder = dataset_folder(record.name)
    temporary = folder.with_name(f".{record.name}.{secrets.token_hex(4)}.part")
    count = sum(len(split.labels) for split in splits.values())
    with disk_errors(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        require_free_space(folder.parent, count * (3 * side * side + 8), record.name)
    try:
        with disk_errors(temporary):
            temporary.mkdir()
            written = {
                name: _write_split(
                    temporary / name, f"{record.name} {name}", split, record.classes, side, on_progress
                )
                for name, split in splits.items()
            }
            complete = replace(record, splits=written)
            with (temporary / RECORD_FILE).open("w", encoding="utf-8") as stream:
                json.dump(asdict(complete), stream, indent=1)
                _flush_to_disk(stream)
            _move_into_place(temporary, folder, replace_existing)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def remove_leftovers(name: str) -> None:
    """Removes the temporary folders of killed processes; the caller must hold the dataset's lock."""
    folder = dataset_folder(name)
    for leftover in folder.parent.glob(f".{name}.*.*"):
        if leftover.suffix == ".old" and not folder.exists():
            # Killed after the old dataset was moved away and before the new one was moved here.
            os.rename(leftover, folder)
        elif leftover.suffix in (".part", ".old"):
            shutil.rmtree(leftover, ignore_errors=True)


def load_from_cache(name: str, split: str, record: CacheRecord) -> ImageDataset:
    """One split from the cache, its images memory-mapped; changes to the tensor do not reach the file."""
    folder, cached = dataset_folder(name) / split, record.splits[split]
    images = _map_array(name, folder / "images.npy", (cached.count, *cached.shape), np.uint8)
    labels = _map_array(name, folder / "labels.npy", (cached.count,), np.int64)
    attributes = {
        attribute: _map_array(name, folder / f"{_attribute_stem(attribute)}.npy", (cached.count,), np.int64)
        for attribute in cached.attributes_sha256
    }
    try:
        return ImageDataset(
            torch.from_numpy(images),
            torch.from_numpy(np.array(labels)),
            record.classes,
            name,
            split,
            record.class_names,
            {attribute: torch.from_numpy(np.array(values)) for attribute, values in attributes.items()},
        )
    except DataError as error:
        raise cache_error(name, str(error)) from error


def verify_cache(name: str, record: CacheRecord, on_progress: Progress | None = None) -> None:
    """Raises if the SHA-256 of an array in the cache is not the one of its record."""
    for split, cached in record.splits.items():
        for kind, shape, dtype, expected in (
            ("images", (cached.count, *cached.shape), np.uint8, cached.images_sha256),
            ("labels", (cached.count,), np.int64, cached.labels_sha256),
            *(
                (_attribute_stem(attribute), (cached.count,), np.int64, sha256)
                for attribute, sha256 in cached.attributes_sha256.items()
            ),
        ):
            array = _map_array(name, dataset_folder(name) / split / f"{kind}.npy", shape, dtype)
            digest, content = hashlib.sha256(), array.reshape(-1).view(np.uint8).data
            for start in range(0, len(content), _HASH_BLOCK):
                digest.update(content[start : start + _HASH_BLOCK])
                if on_progress:
                    done = min(start + _HASH_BLOCK, len(content))
                    on_progress(f"hashing {name} {split}", done, len(content))
            if digest.hexdigest() != expected:
                raise cache_error(name, f"{split}/{kind}.npy does not have the SHA-256 it was written with")


def _move_into_place(temporary: Path, folder: Path, replace_existing: bool) -> None:
    old = temporary.with_suffix(".old")
    if replace_existing and folder.exists():
        os.rename(folder, old)
    try:
        os.rename(temporary, folder)
    except OSError:
        if old.exists():
            os.rename(old, folder)
            raise
        # Another process was faster, and its dataset is as good.
        if not (folder / RECORD_FILE).exists():
            raise
    shutil.rmtree(old, ignore_errors=True)


def _write_split(
    folder: Path, title: str, split: SourceSplit, classes: int, side: int, on_progress: Progress | None
) -> CachedSplit:
    folder.mkdir()
    total = len(split.labels)
    if not total:
        raise DataError(f"{title}: no images", field="images", value=0, expected="at least one image")
    low, high = int(split.labels.min()), int(split.labels.max())
    if low < 0 or high >= classes:
        raise DataError(
            f"{title}: labels in [{low}, {high}], expected [0, {classes - 1}]",
            field="labels",
            value=(low, high),
            expected=f"labels in [0, {classes - 1}]",
        )

    def blocks() -> Iterator[ImageBlock]:
        done = 0
        for block in checked_blocks(split, title, side):
            yield block
            done += len(block)
            if on_progress:
                on_progress(f"writing {title}", done, total)

    shape = (3, side, side)
    images_sha256 = _write_array(folder / "images.npy", (total, *shape), np.uint8, blocks())
    labels = iter([split.labels.astype("<i8")])
    labels_sha256 = _write_array(folder / "labels.npy", (total,), np.int64, labels)
    attributes_sha256 = {
        name: _write_array(
            folder / f"{_attribute_stem(name)}.npy", (total,), np.int64, iter([values.astype("<i8")])
        )
        for name, values in split.attributes.items()
    }
    return CachedSplit(total, shape, images_sha256, labels_sha256, attributes_sha256)


def _attribute_stem(name: str) -> str:
    """The name of an attribute's file without suffix; its prefix keeps it apart from the other arrays."""
    return f"attribute-{name}"


def _write_array(file: Path, shape: tuple[int, ...], dtype: Any, blocks: Iterator[NDArray[Any]]) -> str:
    """Writes an `.npy` block by block and returns the SHA-256 of its content.

    Through a stream: with a memory map a full disk would kill the process.
    """
    digest = hashlib.sha256()
    descr = np.lib.format.dtype_to_descr(np.dtype(dtype).newbyteorder("<"))
    with file.open("wb") as stream:
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(stream, header)
        for block in blocks:
            content = np.ascontiguousarray(block).data
            digest.update(content)
            stream.write(content)
        _flush_to_disk(stream)
    return digest.hexdigest()


def _flush_to_disk(stream: IO[Any]) -> None:
    """The files must be on the disk before their folder is moved into place."""
    stream.flush()
    os.fsync(stream.fileno())


def _map_array(name: str, file: Path, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    title = f"{file.parent.name}/{file.name}"
    try:
        # Copy-on-write: PyTorch does not accept a read-only map.
        array: NDArray[Any] = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError, TokenError) as error:  # NumPy tokenizes a header it can't evaluate
        raise cache_error(name, f"{title} can't be read") from error
    if array.dtype != dtype or array.shape != shape:
        raise cache_error(name, f"{title} is {array.dtype} {list(array.shape)}, expected {list(shape)}")
    return array
