"""Data by name: the sample, the cache, and one's own."""

from pathlib import Path

import numpy as np
import pytest
import torch

from refiner.data import get_data, load_sample, open_data, verify
from refiner.errors import DataError, RefinerError


def test_the_sample() -> None:
    data, sample = open_data("sample"), load_sample()
    assert torch.equal(data.images.float() / 255, sample.images) and torch.equal(data.labels, sample.labels)
    assert data.class_names == sample.class_names and (data.name, data.split) == ("sample", "train")
    assert open_data("sample", "train").split == "train"


@pytest.mark.parametrize(
    ("name", "ways"),
    [
        ("cifar10", "refiner data get cifar10, or with --via npm, or with --from PATH"),
        ("svhn", "refiner data get svhn, or with --from PATH"),
        ("lfw", "refiner data get lfw --from PATH"),
    ],
)
def test_what_is_not_there_is_told_how_to_get(name: str, ways: str) -> None:
    for call in (open_data, verify):
        with pytest.raises(DataError) as told:
            call(name)
        assert str(told.value).startswith(f"{name}: not in ") and str(told.value).endswith(
            f"; get it: {ways}"
        )


@pytest.mark.parametrize(
    ("name", "split", "size", "told"),
    [
        ("sample", "test", None, "split = 'test': expected one of 'train'"),
        ("sample", None, 16, "size = 16: goes with folder:PATH, npz:PATH and parquet:PATH only"),
        (
            "folders:x",
            None,
            None,
            "data = 'folders': unknown; did you mean 'folder'? Known: folder, npz, parquet",
        ),
        ("npz:", None, None, "data = 'npz:': expected npz:PATH"),
        ("npz:absent.npz", None, 0, "size = 0: expected an integer ≥ 1"),
        ("npz:absent.npz", None, None, "absent.npz: no such file"),
        ("folder:absent", None, None, "absent: no such folder"),
        ("parquet:absent.parquet", None, None, "absent.parquet: no such file"),
    ],
)
def test_wrong_words(name: str, split: str | None, size: int | None, told: str) -> None:
    with pytest.raises(RefinerError) as error:
        open_data(name, split, size=size)
    assert str(error.value) == told


@pytest.mark.parametrize(
    ("name", "classes", "told"),
    [
        ("sample", ["a", "b"], "classes: goes with folder:PATH only"),
        ("npz:absent.npz", ["a", "b"], "classes: goes with folder:PATH only"),
        ("folder:absent", ["a"], "classes = ['a']: expected two or more names, no two alike"),
        ("folder:absent", ["a", "a"], "classes = ['a', 'a']: expected two or more names, no two alike"),
        ("folder:absent", "ab", "classes = 'ab': expected two or more names, no two alike"),
        ("folder:absent", ["a", 1], "classes = ['a', 1]: expected two or more names, no two alike"),
    ],
)
def test_wrong_classes(name: str, classes: list[str], told: str) -> None:
    with pytest.raises(RefinerError) as error:
        open_data(name, classes=classes)
    assert str(error.value) == told


def test_the_first_split_that_is_there_and_a_short_name(tmp_path: Path) -> None:
    pixels = np.zeros((2, 28, 28, 3), np.uint8)
    np.savez(tmp_path / "pathmnist_part.npz", test_images=pixels, test_labels=np.array([1, 2]))
    get_data("path", tmp_path)
    data = open_data("path")
    assert (data.name, data.split, data.labels.tolist()) == ("pathmnist", "test", [1, 2])
    with pytest.raises(RefinerError, match="split = 'train': expected one of 'test'"):
        open_data("pathmnist", "train")
