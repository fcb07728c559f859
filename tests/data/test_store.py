"""Data on disk: whole or not there, memory-mapped, and any change is found."""

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

from refiner.data import store
from refiner.data.cache import Record, data_folder, read_record
from refiner.data.readers.raw import Block, Raw, in_pieces
from refiner.data.store import clear_leftovers, open_stored, verify_data, write_data
from refiner.errors import DataError

RECORD = Record("cifar10", "here", 10, {}, ())


def raw(count: int, seed: int = 0) -> tuple[Block, Raw]:
    images = np.random.default_rng(seed).integers(0, 256, (count, 3, 4, 4), np.uint8)
    labels = np.arange(count, dtype=np.int64) % 10
    return images, Raw(labels, lambda: in_pieces(images, 7))


def found() -> Record:
    record = read_record("cifar10")
    assert record is not None
    return record


def left() -> list[str]:
    folder = data_folder("cifar10").parent
    return sorted(file.name for file in folder.iterdir()) if folder.exists() else []


def test_what_is_written_comes_back() -> None:
    told: list[tuple[str, int, int]] = []
    train, train_raw = raw(20)
    test, test_raw = raw(5, seed=1)
    place = write_data(RECORD, {"train": train_raw, "test": test_raw}, 4, lambda *a: told.append(a))
    assert place == data_folder("cifar10") and left() == ["cifar10"]
    for split, images in (("train", train), ("test", test)):
        data = open_stored("cifar10", split, found())
        assert torch.equal(data.images, torch.from_numpy(images))
        assert data.labels.tolist() == [n % 10 for n in range(len(images))]
        assert (data.name, data.split, data.classes) == ("cifar10", split, 10)
        assert data.images.is_contiguous()
    assert told[:3] == [("writing cifar10 train", n, 20) for n in (7, 14, 20)]
    verify_data("cifar10", found())


def test_images_are_mapped_and_the_file_can_not_be_changed_through_them() -> None:
    write_data(RECORD, {"train": raw(20)[1]}, 4)
    file = data_folder("cifar10") / "train" / "images.npy"
    before = file.read_bytes()
    array = np.load(file, mmap_mode="r")
    assert isinstance(array, np.memmap) and array.dtype == np.uint8
    data = open_stored("cifar10", "train", found())
    data.images.zero_()
    assert file.read_bytes() == before
    assert open_stored("cifar10", "train", found()).images.max() > 0


@pytest.mark.parametrize("kind", ["images", "labels"])
@pytest.mark.parametrize("place", [0, -1, 127])
def test_a_changed_byte_is_found(kind: str, place: int) -> None:
    write_data(RECORD, {"train": raw(20)[1]}, 4)
    file = data_folder("cifar10") / "train" / f"{kind}.npy"
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=rf"cifar10: broken, train/{kind}\.npy .*--replace"):
        verify_data("cifar10", found())


@pytest.mark.parametrize("kind", ["images", "labels"])
@pytest.mark.parametrize("end", [0, 5, 100, -1])
def test_a_cut_file_is_found_on_opening(kind: str, end: int) -> None:
    write_data(RECORD, {"train": raw(20)[1]}, 4)
    file = data_folder("cifar10") / "train" / f"{kind}.npy"
    file.write_bytes(file.read_bytes()[:end])
    with pytest.raises(DataError, match=rf"broken, train/{kind}\.npy can't be read"):
        open_stored("cifar10", "train", found())
    file.unlink()
    with pytest.raises(DataError, match=rf"broken, train/{kind}\.npy can't be read"):
        open_stored("cifar10", "train", found())


def test_other_arrays_in_their_place_are_found() -> None:
    write_data(RECORD, {"train": raw(20)[1]}, 4)
    folder = data_folder("cifar10") / "train"
    np.save(folder / "labels.npy", np.full(20, 10))
    with pytest.raises(DataError, match=r"broken, .*labels in \[10, 10\], expected \[0, 9\]"):
        open_stored("cifar10", "train", found())
    np.save(folder / "images.npy", np.zeros((20, 3, 4, 4)))
    with pytest.raises(DataError, match=r"broken, train/images\.npy is float64 \[20, 3, 4, 4\]"):
        open_stored("cifar10", "train", found())
    np.save(folder / "images.npy", np.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match=r"broken, train/images\.npy can't be read"):
        open_stored("cifar10", "train", found())


def blocks(*shapes: tuple[int, ...]) -> Any:
    def make() -> Iterator[Block]:
        return iter([np.zeros(shape, np.uint8) for shape in shapes])

    return make


@pytest.mark.parametrize(
    ("labels", "made", "told"),
    [
        ([0, 1], blocks((1, 3, 4, 4)), "1 images, but 2 labels"),
        ([0, 1], blocks((1, 3, 4, 4), (2, 3, 4, 4)), "more images, but 2 labels"),
        ([0, 1], blocks((2, 3, 5, 4)), r"images of \[3, 5, 4\], expected \[3, 4, 4\]"),
        ([0, 10], blocks((2, 3, 4, 4)), r"labels in \[0, 10\], expected \[0, 9\]"),
        ([-1, 0], blocks((2, 3, 4, 4)), r"labels in \[-1, 0\]"),
        ([], blocks(), "no images"),
    ],
)
def test_what_does_not_fit_leaves_nothing(labels: list[int], made: Any, told: str) -> None:
    with pytest.raises(DataError, match=f"cifar10 train: {told}"):
        write_data(RECORD, {"train": Raw(np.array(labels, dtype=np.int64), made)}, 4)
    assert left() == []


def failing(error: Exception) -> Raw:
    def made() -> Iterator[Block]:
        yield np.zeros((1, 3, 4, 4), np.uint8)
        raise error

    return Raw(np.array([0, 1]), made)


def test_an_error_keeps_what_was_there() -> None:
    images, first = raw(20)
    write_data(RECORD, {"train": first}, 4)
    with pytest.raises(DataError, match="broken image"):
        write_data(RECORD, {"train": failing(DataError("broken image"))}, 4, instead=True)
    with pytest.raises(KeyboardInterrupt):
        write_data(RECORD, {"train": failing(KeyboardInterrupt())}, 4, instead=True)  # type: ignore[arg-type]
    assert left() == ["cifar10"]
    assert torch.equal(open_stored("cifar10", "train", found()).images, torch.from_numpy(images))


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with pytest.raises(DataError, match=r"\.part: no room left on the disk"):
        write_data(RECORD, {"train": failing(full)}, 4)
    assert left() == []
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(DataError, match=r"cifar10: needs 1,120 bytes in .*, but 1,000 bytes are free"):
        write_data(RECORD, {"train": raw(20)[1]}, 4)
    assert left() == []


def test_the_second_of_two_leaves_the_first() -> None:
    first, second = raw(20), raw(10, seed=1)
    write_data(RECORD, {"train": first[1]}, 4)
    write_data(RECORD, {"train": second[1]}, 4)
    assert found().splits["train"].count == 20 and left() == ["cifar10"]
    write_data(RECORD, {"train": second[1]}, 4, instead=True)
    assert found().splits["train"].count == 10 and left() == ["cifar10"]


def test_a_failed_swap_puts_the_old_one_back(monkeypatch: pytest.MonkeyPatch) -> None:
    write_data(RECORD, {"train": raw(20)[1]}, 4)
    rename, calls = os.rename, []

    def fail_second(source: Path, target: Path) -> None:
        calls.append(source)
        if len(calls) == 2:
            raise OSError(errno.EIO, "I/O error")
        rename(source, target)

    monkeypatch.setattr(store.os, "rename", fail_second)
    with pytest.raises(DataError, match=r"can't be written \(I/O error\)"):
        write_data(RECORD, {"train": raw(10)[1]}, 4, instead=True)
    assert found().splits["train"].count == 20 and left() == ["cifar10"]


def test_a_swap_that_was_killed_is_undone() -> None:
    place = write_data(RECORD, {"train": raw(20)[1]}, 4)
    place.rename(place.with_name(".cifar10.12345678.old"))
    clear_leftovers("cifar10")
    assert found().splits["train"].count == 20 and left() == ["cifar10"]
    # What is in place is the newer one.
    (place.parent / ".cifar10.12345678.old").mkdir()
    clear_leftovers("cifar10")
    assert left() == ["cifar10"]


KILLED = """
import os, signal, sys
import numpy as np
from refiner.data.cache import Record
from refiner.data.readers.raw import Raw
from refiner.data.store import write_data

def made():
    yield np.zeros((1, 3, 4, 4), np.uint8)
    os.kill(os.getpid(), signal.SIGKILL)

write_data(Record("cifar10", "here", 10, {}), {"train": Raw(np.array([0, 1]), made)}, 4)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL there")
def test_a_killed_process_leaves_nothing_that_looks_finished() -> None:
    done = subprocess.run([sys.executable, "-c", KILLED], env={**os.environ}, check=False)
    assert done.returncode == -signal.SIGKILL
    assert read_record("cifar10") is None and not data_folder("cifar10").exists()
    (name,) = left()
    assert name.startswith(".cifar10.") and name.endswith(".part")
    clear_leftovers("svhn")
    assert left() == [name]
    clear_leftovers("cifar10")
    assert left() == []
