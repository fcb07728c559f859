"""Datasets in the cache are written completely or not at all, memory-mapped, and verified."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refiner.data import cached_arrays
from refiner.data.cache_record import CacheRecord, dataset_folder, read_record
from refiner.data.cached_arrays import load_from_cache, remove_leftovers, verify_cache, write_to_cache
from refiner.data.readers.source_split import ImageBlock, SourceSplit, iter_blocks
from refiner.errors import DataError

RECORD = CacheRecord("cifar10", "here", 10, {}, ())


def make_split(count: int, seed: int = 0) -> tuple[ImageBlock, SourceSplit]:
    images = np.random.default_rng(seed).integers(0, 256, (count, 3, 4, 4), np.uint8)
    labels = np.arange(count, dtype=np.int64) % 10
    return images, SourceSplit(labels, lambda: iter_blocks(images, 7))


def record() -> CacheRecord:
    record = read_record("cifar10")
    assert record is not None
    return record


def cached_names() -> list[str]:
    folder = dataset_folder("cifar10").parent
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def test_written_splits_are_loaded_unchanged() -> None:
    steps: list[tuple[str, int, int]] = []
    train, train_raw = make_split(20)
    test, test_raw = make_split(5, seed=1)
    place = write_to_cache(RECORD, {"train": train_raw, "test": test_raw}, 4, lambda *a: steps.append(a))
    assert place == dataset_folder("cifar10") and cached_names() == ["cifar10"]
    for split, images in (("train", train), ("test", test)):
        data = load_from_cache("cifar10", split, record())
        assert torch.equal(data.images, torch.from_numpy(images))
        assert data.labels.tolist() == [n % 10 for n in range(len(images))]
        assert (data.name, data.split, data.classes) == ("cifar10", split, 10)
        assert data.images.is_contiguous()
    assert steps[:3] == [("writing cifar10 train", n, 20) for n in (7, 14, 20)]
    verify_cache("cifar10", record())


def test_images_are_mapped_and_changes_do_not_reach_the_file() -> None:
    write_to_cache(RECORD, {"train": make_split(20)[1]}, 4)
    file = dataset_folder("cifar10") / "train" / "images.npy"
    before = file.read_bytes()
    array = np.load(file, mmap_mode="r")
    assert isinstance(array, np.memmap) and array.dtype == np.uint8
    data = load_from_cache("cifar10", "train", record())
    data.images.zero_()
    assert file.read_bytes() == before
    assert load_from_cache("cifar10", "train", record()).images.max() > 0


@pytest.mark.parametrize("kind", ["images", "labels"])
@pytest.mark.parametrize("place", [0, -1, 127])
def test_changed_byte_is_detected(kind: str, place: int) -> None:
    write_to_cache(RECORD, {"train": make_split(20)[1]}, 4)
    file = dataset_folder("cifar10") / "train" / f"{kind}.npy"
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=rf"cifar10: damaged, train/{kind}\.npy .*--replace"):
        verify_cache("cifar10", record())


@pytest.mark.parametrize("kind", ["images", "labels"])
@pytest.mark.parametrize("end", [0, 5, 100, -1])
def test_truncated_file_is_detected_on_loading(kind: str, end: int) -> None:
    write_to_cache(RECORD, {"train": make_split(20)[1]}, 4)
    file = dataset_folder("cifar10") / "train" / f"{kind}.npy"
    file.write_bytes(file.read_bytes()[:end])
    with pytest.raises(DataError, match=rf"damaged, train/{kind}\.npy can't be read"):
        load_from_cache("cifar10", "train", record())
    file.unlink()
    with pytest.raises(DataError, match=rf"damaged, train/{kind}\.npy can't be read"):
        load_from_cache("cifar10", "train", record())


def test_replaced_arrays_are_detected() -> None:
    write_to_cache(RECORD, {"train": make_split(20)[1]}, 4)
    folder = dataset_folder("cifar10") / "train"
    np.save(folder / "labels.npy", np.full(20, 10))
    with pytest.raises(DataError, match=r"damaged, .*labels in \[10, 10\], expected \[0, 9\]"):
        load_from_cache("cifar10", "train", record())
    np.save(folder / "images.npy", np.zeros((20, 3, 4, 4)))
    with pytest.raises(DataError, match=r"damaged, train/images\.npy is float64 \[20, 3, 4, 4\]"):
        load_from_cache("cifar10", "train", record())
    np.save(folder / "images.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"damaged, train/images\.npy can't be read"):
        load_from_cache("cifar10", "train", record())


def blocks(*shapes: tuple[int, ...]) -> Any:
    def make() -> Iterator[ImageBlock]:
        return iter([np.zeros(shape, np.uint8) for shape in shapes])

    return make


@pytest.mark.parametrize(
    ("labels", "make_blocks", "message"),
    [
        ([0, 1], blocks((1, 3, 4, 4)), "1 images, but 2 labels"),
        ([0, 1], blocks((1, 3, 4, 4), (2, 3, 4, 4)), "more images than the 2 labels"),
        ([0, 1], blocks((2, 3, 5, 4)), r"images of \[3, 5, 4\], expected \[3, 4, 4\]"),
        ([0, 10], blocks((2, 3, 4, 4)), r"labels in \[0, 10\], expected \[0, 9\]"),
        ([-1, 0], blocks((2, 3, 4, 4)), r"labels in \[-1, 0\]"),
        ([], blocks(), "no images"),
    ],
)
def test_inconsistent_split_leaves_nothing(labels: list[int], make_blocks: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"cifar10 train: {message}"):
        write_to_cache(RECORD, {"train": SourceSplit(np.array(labels, dtype=np.int64), make_blocks)}, 4)
    assert cached_names() == []


def failing(error: Exception) -> SourceSplit:
    def make_blocks() -> Iterator[ImageBlock]:
        yield np.zeros((1, 3, 4, 4), np.uint8)
        raise error

    return SourceSplit(np.array([0, 1]), make_blocks)


def test_error_keeps_the_existing_dataset() -> None:
    images, first = make_split(20)
    write_to_cache(RECORD, {"train": first}, 4)
    with pytest.raises(DataError, match="broken image"):
        write_to_cache(RECORD, {"train": failing(DataError("broken image"))}, 4, replace_existing=True)
    with pytest.raises(KeyboardInterrupt):
        write_to_cache(RECORD, {"train": failing(KeyboardInterrupt())}, 4, replace_existing=True)  # type: ignore[arg-type]
    assert cached_names() == ["cifar10"]
    assert torch.equal(load_from_cache("cifar10", "train", record()).images, torch.from_numpy(images))


def test_full_disk_raises_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(DataError, match=r"\.part: no space left on the disk"):
        write_to_cache(RECORD, {"train": failing(full)}, 4)
    assert cached_names() == []
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(DataError, match=r"cifar10: needs 1,120 bytes in .*, but only 1,000 bytes are free"):
        write_to_cache(RECORD, {"train": make_split(20)[1]}, 4)
    assert cached_names() == []


def test_existing_dataset_is_kept_unless_replaced() -> None:
    first, second = make_split(20), make_split(10, seed=1)
    write_to_cache(RECORD, {"train": first[1]}, 4)
    write_to_cache(RECORD, {"train": second[1]}, 4)
    assert record().splits["train"].count == 20 and cached_names() == ["cifar10"]
    write_to_cache(RECORD, {"train": second[1]}, 4, replace_existing=True)
    assert record().splits["train"].count == 10 and cached_names() == ["cifar10"]


def test_failed_replacement_restores_the_old_dataset(monkeypatch: pytest.MonkeyPatch) -> None:
    write_to_cache(RECORD, {"train": make_split(20)[1]}, 4)
    rename, calls = os.rename, []

    def fail_second(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise OSError(errno.EIO, "I/O error")
        rename(source, target)

    monkeypatch.setattr(cached_arrays.os, "rename", fail_second)
    with pytest.raises(DataError, match=r"can't be written \(I/O error\)"):
        write_to_cache(RECORD, {"train": make_split(10)[1]}, 4, replace_existing=True)
    assert record().splits["train"].count == 20 and cached_names() == ["cifar10"]


def test_killed_replacement_is_undone() -> None:
    place = write_to_cache(RECORD, {"train": make_split(20)[1]}, 4)
    place.rename(place.with_name(".cifar10.12345678.old"))
    remove_leftovers("cifar10")
    assert record().splits["train"].count == 20 and cached_names() == ["cifar10"]
    # The dataset in place is the newer one.
    (place.parent / ".cifar10.12345678.old").mkdir()
    remove_leftovers("cifar10")
    assert cached_names() == ["cifar10"]


KILLED = """
import os, signal, sys
import numpy as np
from refiner.data.cache_record import CacheRecord
from refiner.data.readers.source_split import SourceSplit
from refiner.data.cached_arrays import write_to_cache

def make_blocks():
    yield np.zeros((1, 3, 4, 4), np.uint8)
    os.kill(os.getpid(), signal.SIGKILL)

split = SourceSplit(np.array([0, 1]), make_blocks)
write_to_cache(CacheRecord("cifar10", "here", 10, {}), {"train": split}, 4)
"""


@pytest.mark.processes
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_a_killed_process_leaves_nothing_that_looks_finished() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_record("cifar10") is None and not dataset_folder("cifar10").exists()
    (name,) = cached_names()
    assert name.startswith(".cifar10.") and name.endswith(".part")
    remove_leftovers("svhn")
    assert cached_names() == [name]
    remove_leftovers("cifar10")
    assert cached_names() == []
