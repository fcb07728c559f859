"""Real data sets are read whole and right; what is missing or broken is named."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from refiner.data import DATASETS, load_dataset
from refiner.data.datasets import in_test
from refiner.errors import DataError, SettingError

COUNTS = {
    ("cifar10", "test"): 10_000,
    ("cifar100", "test"): 10_000,
    ("svhn", "test"): 10_000,
    ("ham10000", "train"): 8_014,
    ("ham10000", "test"): 2_001,
    ("path", "test"): 718,
    ("pathmnist", "test"): 718,
    ("lfw", "all"): 13_233,
    ("tiny-imagenet", "val"): 10_000,
}


@pytest.mark.parametrize(("name", "split"), COUNTS)
def test_real_data(data_dir: Callable[[str], Path], name: str, split: str) -> None:
    images, labels = load_dataset(name, split, data_dir(name))
    info = DATASETS[name]
    assert images.dtype == torch.uint8 and labels.dtype == torch.int64
    assert images.shape == (COUNTS[name, split], 3, info.size, info.size)
    assert images.is_contiguous()
    assert len(labels.unique()) == info.classes
    if name in ("cifar10", "cifar100", "tiny-imagenet"):
        assert labels.bincount().unique().tolist() == [len(labels) // info.classes]
    # Neighbouring pixels of a photograph are alike: a wrong layout would tear them apart.
    sample = images[:500].float()
    assert (sample[..., 1:] - sample[..., :-1]).abs().mean() < 25
    assert (sample[..., 1:, :] - sample[..., :-1, :]).abs().mean() < 25
    few, few_labels = load_dataset(name, split, data_dir(name), limit=37)
    assert torch.equal(few, images[:37]) and torch.equal(few_labels, labels[:37])


@pytest.mark.parametrize(("name", "limit"), [("cifar10", 20_011), ("cifar100", 10_007), ("svhn", 10_000)])
def test_a_limit_reaches_across_files(data_dir: Callable[[str], Path], name: str, limit: int) -> None:
    images, labels = load_dataset(name, "train", data_dir(name), limit)
    assert len(images) == len(labels) == limit


def test_no_lesion_is_on_both_sides(data_dir: Callable[[str], Path]) -> None:
    folder = data_dir("ham10000")
    with np.load(folder / "ham10000_labels.npz", allow_pickle=False) as archive:
        lesions = archive["lesion_id"]
    _, train = load_dataset("ham10000", "train", folder)
    _, test = load_dataset("ham10000", "test", folder)
    assert len(train) + len(test) == len(lesions)
    sides = in_test(lesions)
    assert not set(lesions[sides]) & set(lesions[~sides])
    assert int(sides.sum()) == len(test)


def test_names_are_checked(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"name = 'mnist': expected one of 'cifar10'"):
        load_dataset("mnist", "train", tmp_path)
    with pytest.raises(SettingError, match=r"split = 'train': expected one of 'test'"):
        load_dataset("path", "train", tmp_path)
    with pytest.raises(SettingError, match=r"limit = 0"):
        load_dataset("path", "test", tmp_path, limit=0)


@pytest.mark.parametrize("name", DATASETS)
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    split = next(iter(DATASETS[name].splits))
    with pytest.raises(DataError, match="no such file"):
        load_dataset(name, split, tmp_path)


def test_broken_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "test_lables.json").write_text('["a"]')
    with pytest.raises(DataError, match="not a list of labels"):
        load_dataset("cifar10", "test", tmp_path)
    (tmp_path / "test_lables.json").write_text(json.dumps([0] * 5))
    Image.new("RGB", (1024, 5)).save(tmp_path / "test_batch.png")
    with pytest.raises(DataError, match=r"test_batch\.png: 1024×5 pixels, expected 1024×10000"):
        load_dataset("cifar10", "test", tmp_path)
    np.savez(tmp_path / "svhn_labels.npz", y_train=np.zeros(3, np.uint8))
    with pytest.raises(DataError, match=r"svhn_labels\.npz: no array 'y_test'"):
        load_dataset("svhn", "test", tmp_path)


@pytest.mark.parametrize(
    ("images", "labels", "says"),
    [
        (np.zeros((2, 28, 28, 3), np.uint8), np.array([0, 9]), r"labels in \[0, 9\], expected \[0, 8\]"),
        (np.zeros((2, 28, 28, 3), np.uint8), np.array([0]), "2 images, but 1 labels"),
        (
            np.zeros((2, 8, 8, 3), np.uint8),
            np.array([0, 1]),
            r"images of \[3, 8, 8\], expected \[3, 28, 28\]",
        ),
    ],
)
def test_wrong_content_is_refused(tmp_path: Path, images: np.ndarray, labels: np.ndarray, says: str) -> None:
    np.savez(tmp_path / "pathmnist_test_subset718.npz", test_images=images, test_labels=labels)
    with pytest.raises(DataError, match=says):
        load_dataset("path", "test", tmp_path)
