"""The one form that data have on disk: arrays to be memory-mapped, whole or not there."""

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.typing import NDArray

from refiner.data.cache import RECORD, Record, Split, corrupt, data_folder
from refiner.data.disk_space import need_room, writing
from refiner.data.image_dataset import Data
from refiner.data.readers.raw import Raw
from refiner.errors import DataError

_PIECE = 2**24
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is of it (0 if unknown)."""


def write_data(
    record: Record,
    raws: Mapping[str, Raw],
    side: int,
    on_progress: Progress | None = None,
    *,
    instead: bool = False,
) -> Path:
    """Write splits to the cache and put them in place in one step.

    `record` tells name, source and classes; its splits come from what is written. What was there stays, or
    with `instead` stays until the new one is whole.
    """
    place = data_folder(record.name)
    part = place.with_name(f".{record.name}.{secrets.token_hex(4)}.part")
    count = sum(len(raw.labels) for raw in raws.values())
    with writing(place.parent):
        place.parent.mkdir(parents=True, exist_ok=True)
        need_room(place.parent, count * (3 * side * side + 8), record.name)
    try:
        with writing(part):
            part.mkdir()
            splits = {
                split: _write_split(part / split, f"{record.name} {split}", raw, record, side, on_progress)
                for split, raw in raws.items()
            }
            whole = replace(record, splits=splits)
            with (part / RECORD).open("w", encoding="utf-8") as stream:
                json.dump(asdict(whole), stream, indent=1)
                _to_disk(stream)
            _put(part, place, instead)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return place


def clear_leftovers(name: str) -> None:
    """Remove what killed processes left; only for one that holds the source's lock."""
    place = data_folder(name)
    for left in place.parent.glob(f".{name}.*.*"):
        if left.suffix == ".old" and not place.exists():
            # Killed between moving the old one away and the new one here.
            os.rename(left, place)
        elif left.suffix in (".part", ".old"):
            shutil.rmtree(left, ignore_errors=True)


def _put(part: Path, place: Path, instead: bool) -> None:
    old = part.with_suffix(".old")
    if instead and place.exists():
        os.rename(place, old)
    try:
        os.rename(part, place)
    except OSError:
        if old.exists():
            os.rename(old, place)
            raise
        # Another one was faster, and is as good.
        if not (place / RECORD).exists():
            raise
    shutil.rmtree(old, ignore_errors=True)


def _write_split(
    folder: Path, told: str, raw: Raw, record: Record, side: int, on_progress: Progress | None
) -> Split:
    folder.mkdir()
    total = len(raw.labels)
    if not total:
        raise DataError(f"{told}: no images")
    low, high = int(raw.labels.min()), int(raw.labels.max())
    if low < 0 or high >= record.classes:
        raise DataError(f"{told}: labels in [{low}, {high}], expected [0, {record.classes - 1}]")
    shape = (3, side, side)

    def blocks() -> Iterator[NDArray[Any]]:
        done = 0
        for block in raw.blocks():
            if block.dtype != np.uint8 or block.shape[1:] != shape:
                raise DataError(f"{told}: images of {list(block.shape[1:])}, expected {list(shape)}")
            done += len(block)
            if done > total:
                break
            yield block
            if on_progress:
                on_progress(f"writing {told}", done, total)
        if done != total:
            raise DataError(f"{told}: {'more' if done > total else done} images, but {total} labels")

    images = _write_array(folder / "images.npy", (total, *shape), np.uint8, blocks())
    labels = _write_array(folder / "labels.npy", (total,), np.int64, iter([raw.labels.astype("<i8")]))
    return Split(total, shape, images, labels)


def _write_array(file: Path, shape: tuple[int, ...], dtype: Any, blocks: Iterator[NDArray[Any]]) -> str:
    """Write an `.npy` block by block; the SHA-256 of its content.

    Through a stream: on a full disk a memory map would end the process.
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
        _to_disk(stream)
    return digest.hexdigest()


def _to_disk(stream: IO[Any]) -> None:
    """Before a folder is put in place, what is in it must be on the disk."""
    stream.flush()
    os.fsync(stream.fileno())


def open_stored(name: str, split: str, record: Record) -> Data:
    """One split from the cache, its images memory-mapped; what is written to them stays in memory."""
    folder, held = data_folder(name) / split, record.splits[split]
    images = _mapped(name, folder / "images.npy", (held.count, *held.shape), np.uint8)
    labels = _mapped(name, folder / "labels.npy", (held.count,), np.int64)
    try:
        return Data(
            torch.from_numpy(images),
            torch.from_numpy(np.array(labels)),
            record.classes,
            name,
            split,
            record.class_names,
        )
    except DataError as error:
        raise corrupt(name, str(error)) from error


def _mapped(name: str, file: Path, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    told = f"{file.parent.name}/{file.name}"
    try:
        # Copied on writing: a map that can't be written to can't become a tensor.
        array: NDArray[Any] = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise corrupt(name, f"{told} can't be read") from error
    if array.dtype != dtype or array.shape != shape:
        raise corrupt(name, f"{told} is {array.dtype} {list(array.shape)}, expected {list(shape)}")
    return array


def verify_data(name: str, record: Record, on_progress: Progress | None = None) -> None:
    """Hash what lies in the cache again, and compare."""
    for split, held in record.splits.items():
        for kind, shape, dtype, digest in (
            ("images", (held.count, *held.shape), np.uint8, held.images_sha256),
            ("labels", (held.count,), np.int64, held.labels_sha256),
        ):
            array = _mapped(name, data_folder(name) / split / f"{kind}.npy", shape, dtype)
            found, content = hashlib.sha256(), array.reshape(-1).view(np.uint8).data
            for start in range(0, len(content), _PIECE):
                found.update(content[start : start + _PIECE])
                if on_progress:
                    on_progress(f"hashing {name} {split}", min(start + _PIECE, len(content)), len(content))
            if found.hexdigest() != digest:
                raise corrupt(name, f"{split}/{kind}.npy has another SHA-256 than when it was written")
