"""Loading by name: the sample, the cache, a folder, REFINER_DATA, and a user's own data."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from refiner.data import available_splits, fetch_data, load_data, load_sample, verify_data
from refiner.errors import DataError, RefinerError


def test_sample() -> None:
    data, sample = load_data("sample"), load_sample()
    assert torch.equal(data.images.float() / 255, sample.images) and torch.equal(data.labels, sample.labels)
    assert data.class_names == sample.class_names and (data.name, data.split) == ("sample", "train")
    assert load_data("sample", "train").split == "train"


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("cifar10", "refiner data fetch cifar10, or with --via npm, or with --from PATH"),
        ("svhn", "refiner data fetch svhn, or with --from PATH"),
        ("lfw", "refiner data fetch lfw --from PATH"),
    ],
)
def test_missing_dataset_raises_with_the_commands_that_fetch_it(name: str, ways: str) -> None:
    for call in (load_data, verify_data):
        with pytest.raises(DataError) as caught:
            call(name)
        assert str(caught.value).startswith(f"{name}: not in ") and str(caught.value).endswith(
            f"; fetch it: {ways}"
        )


@pytest.mark.parametrize(
    ("name", "split", "size", "message"),
    [
        ("sample", "test", None, "split = 'test': expected one of 'train'"),
        (
            "sample",
            None,
            16,
            "size = 16: only valid with your own data, not with sample",
        ),
        (
            "folders:x",
            None,
            None,
            "data = 'folders': unknown; did you mean 'folder'? Known: folder, npz, parquet, arrow",
        ),
        ("npz:", None, None, "data = 'npz:': expected npz:PATH"),
        ("npz:absent.npz", None, 0, "size = 0: expected an integer ≥ 1"),
        ("npz:absent.npz", None, None, "absent.npz: no such file"),
        ("folder:absent", None, None, "absent: no such folder"),
        ("parquet:absent.parquet", None, None, "absent.parquet: no such file"),
    ],
)
def test_wrong_arguments_raise(name: str, split: str | None, size: int | None, message: str) -> None:
    with pytest.raises(RefinerError) as error:
        load_data(name, split, size=size)
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("name", "classes", "message"),
    [
        ("sample", ["a", "b"], "classes: only valid with folder:PATH, not with sample"),
        ("npz:absent.npz", ["a", "b"], "classes: only valid with folder:PATH, not with npz:absent.npz"),
        ("folder:absent", ["a"], "classes = ['a']: expected two or more different names"),
        ("folder:absent", ["a", "a"], "classes = ['a', 'a']: expected two or more different names"),
        ("folder:absent", "ab", "classes = 'ab': expected two or more different names"),
        ("folder:absent", ["a", 1], "classes = ['a', 1]: expected two or more different names"),
    ],
)
def test_wrong_classes_raise(name: str, classes: list[str], message: str) -> None:
    with pytest.raises(RefinerError) as error:
        load_data(name, classes=classes)
    assert str(error.value) == message


def test_first_existing_split_and_alias(tmp_path: Path) -> None:
    pixels = np.zeros((2, 28, 28, 3), np.uint8)
    np.savez(tmp_path / "pathmnist_part.npz", test_images=pixels, test_labels=np.array([1, 2]))
    fetch_data("path", tmp_path)
    data = load_data("path")
    assert (data.name, data.split, data.labels.tolist()) == ("pathmnist", "test", [1, 2])
    with pytest.raises(RefinerError, match="split = 'train': expected one of 'test'"):
        load_data("pathmnist", "train")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a part of PathMNIST; image n has the value n in every pixel."""
    pixels = np.arange(5, dtype=np.uint8).repeat(28 * 28 * 3).reshape(5, 28, 28, 3)
    arrays = {"train_images": pixels[:3], "train_labels": np.arange(3)}
    arrays |= {"test_images": pixels[3:], "test_labels": np.arange(2)}
    (tmp_path / "data").mkdir()
    np.savez(tmp_path / "data" / "pathmnist_part.npz", **arrays)
    return tmp_path / "data"


def test_named_dataset_is_read_from_a_folder_or_file(folder: Path) -> None:
    for root in (folder, folder / "pathmnist_part.npz", str(folder)):
        data = load_data("path", root=root)
        assert (data.name, data.split, data.classes) == ("pathmnist", "train", 9)
        assert data.images[:, 0, 0, 0].tolist() == [0, 1, 2] and data.class_names[0] == "adipose"
        assert available_splits("path", root) == ("train", "test")
    assert load_data("path", "test", root=folder).images[:, 2, 27, 27].tolist() == [3, 4]


def test_named_dataset_is_found_in_the_folders_of_refiner_data(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "absent", tmp_path, folder]
    monkeypatch.setenv("REFINER_DATA", os.pathsep.join(map(str, folders)))
    assert load_data("pathmnist", "test").labels.tolist() == [0, 1]
    assert available_splits("pathmnist") == ("train", "test")
    with pytest.raises(DataError, match=r"svhn: not in .* or a folder of REFINER_DATA; fetch it: "):
        load_data("svhn")
    # The cache comes first.
    np.savez(tmp_path / "pathmnist_x.npz", test_images=np.zeros((1, 28, 28, 3), np.uint8), test_labels=[8])
    fetch_data("pathmnist", tmp_path / "pathmnist_x.npz")
    assert load_data("pathmnist").labels.tolist() == [8] and available_splits("path") == ("test",)


def test_limit_loads_the_first_images(folder: Path) -> None:
    assert load_data("path", root=folder, limit=2).images[:, 0, 0, 0].tolist() == [0, 1]
    assert len(load_data("path", root=folder, limit=50)) == 3
    fetch_data("path", folder)
    for name, limit in (("path", 1), ("sample", 7), (f"npz:{folder}/pathmnist_part.npz", 2)):
        data = load_data(name, limit=limit)
        assert len(data) == len(data.labels) == limit
    with pytest.raises(RefinerError, match="limit = 0: expected an integer ≥ 1"):
        load_data("sample", limit=0)


def test_root_needs_a_named_dataset(folder: Path) -> None:
    for name in ("sample", "npz:a.npz"):
        with pytest.raises(DataError, match=f"root = .*: only valid with a named dataset, not with {name}"):
            load_data(name, root=folder)
    with pytest.raises(DataError, match="no SVHN, cropped digits found, expected "):
        load_data("svhn", root=folder)
    with pytest.raises(DataError, match="absent: no such file or folder"):
        load_data("svhn", root="absent")


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((2, 28, 28, 3), np.uint8), np.array([0, 9]), r"labels in \[0, 9\], expected \[0, 8\]"),
        (
            np.zeros((2, 28, 28, 3), np.uint8),
            np.array([0]),
            r"test_labels is int64 \[1\], expected 2 integers",
        ),
        (
            np.zeros((2, 8, 8, 3), np.uint8),
            np.array([0, 1]),
            r"images of \[3, 8, 8\], expected \[3, 28, 28\]",
        ),
    ],
)
def test_wrong_content_raises(tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str) -> None:
    np.savez(tmp_path / "pathmnist_part.npz", test_images=images, test_labels=labels)
    with pytest.raises(DataError, match=message):
        load_data("path", "test", root=tmp_path)
