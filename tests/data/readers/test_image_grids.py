"""Datasets as image grids and in the npm layout: real files are read completely, broken ones raise."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from refiner.data import DATASETS, load_data, write_image_grid
from refiner.data.catalogue import find_dataset
from refiner.data.readers.image_grids import in_test_split
from refiner.errors import DataError, SettingError

COUNTS = {
    ("cifar10", "test"): 10_000,
    ("cifar100", "test"): 10_000,
    ("svhn", "test"): 10_000,
    ("ham10000", "train"): 8_014,
    ("ham10000", "test"): 2_001,
    ("path", "test"): 718,
    ("lfw", "all"): 13_233,
    ("tiny-imagenet", "val"): 10_000,
}


@pytest.mark.parametrize(("name", "split"), COUNTS)
def test_real_files_are_read_completely(data_dir: Callable[[str], Path], name: str, split: str) -> None:
    data = load_data(name, split, root=data_dir(name))
    images, labels = data.images, data.labels
    info = find_dataset(name)[1]
    assert images.dtype == torch.uint8 and labels.dtype == torch.int64
    assert images.shape == (COUNTS[name, split], 3, info.size, info.size)
    assert images.is_contiguous()
    assert len(labels.unique()) == info.classes
    if name in ("cifar10", "cifar100", "tiny-imagenet"):
        assert labels.bincount().unique().tolist() == [len(labels) // info.classes]
    # Neighbouring pixels of a photograph are similar; with a wrong layout they would not be.
    sample = images[:500].float()
    assert (sample[..., 1:] - sample[..., :-1]).abs().mean() < 25
    assert (sample[..., 1:, :] - sample[..., :-1, :]).abs().mean() < 25
    first = load_data(name, split, root=data_dir(name), limit=37)
    assert torch.equal(first.images, images[:37]) and torch.equal(first.labels, labels[:37])


@pytest.mark.parametrize(("name", "limit"), [("cifar10", 10_011), ("cifar100", 10_007), ("cifar100", 10_000)])
def test_limit_ends_within_or_at_the_end_of_a_file(
    data_dir: Callable[[str], Path], name: str, limit: int
) -> None:
    data = load_data(name, "train", root=data_dir(name), limit=limit)
    assert len(data.images) == len(data.labels) == limit


def test_no_lesion_is_in_train_and_test(data_dir: Callable[[str], Path]) -> None:
    folder = data_dir("ham10000")
    with np.load(folder / "ham10000_labels.npz", allow_pickle=False) as archive:
        lesions = archive["lesion_id"]
    train, test = (load_data("ham10000", split, root=folder) for split in ("train", "test"))
    assert len(train) + len(test) == len(lesions)
    is_test = in_test_split(lesions)
    assert not set(lesions[is_test]) & set(lesions[~is_test])
    assert int(is_test.sum()) == len(test)


def test_unknown_split_raises(tmp_path: Path) -> None:
    np.savez(tmp_path / "pathmnist_part.npz", test_images=np.zeros((1, 28, 28, 3), np.uint8), test_labels=[0])
    with pytest.raises(SettingError, match=r"split = 'train': expected one of 'test'"):
        load_data("path", "train", root=tmp_path)


@pytest.mark.parametrize("name", DATASETS)
def test_missing_files_raise(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match="found, expected "):
        load_data(name, root=tmp_path)


def write_npm_layout(folder: Path, test_labels: str, test_images: Image.Image) -> None:
    for number in range(1, 6):
        Image.new("RGB", (1024, 1)).save(folder / f"data_batch_{number}.png")
    (folder / "train_lables.json").write_text(json.dumps([0] * 5))
    test_images.save(folder / "test_batch.png")
    (folder / "test_lables.json").write_text(test_labels)


def test_broken_npm_layout_raises(tmp_path: Path) -> None:
    write_npm_layout(tmp_path, '["a"]', Image.new("RGB", (1024, 5)))
    with pytest.raises(DataError, match=r"test_lables\.json: not a list of labels"):
        load_data("cifar10", "test", root=tmp_path)
    write_npm_layout(tmp_path, "[0, 1, 2, 3]", Image.new("RGB", (1024, 5)))
    with pytest.raises(DataError, match="cifar10 test: more images than the 4 labels"):
        load_data("cifar10", "test", root=tmp_path)
    write_npm_layout(tmp_path, "[0]", Image.new("RGB", (1023, 1)))
    with pytest.raises(DataError, match=r"test_batch\.png: rows of 1023 pixels, expected 1024"):
        load_data("cifar10", "test", root=tmp_path)


def test_broken_grids_raise(tmp_path: Path) -> None:
    write_image_grid(tmp_path / "svhn_test_0.webp", torch.zeros(100, 3, 32, 32, dtype=torch.uint8))
    np.savez(tmp_path / "svhn_labels.npz", y_train=np.zeros(3, np.uint8))
    with pytest.raises(DataError, match=r"svhn_labels\.npz: no array 'y_test'"):
        load_data("svhn", "test", root=tmp_path)
    np.savez(tmp_path / "svhn_labels.npz", y_test=np.zeros(101, np.uint8))
    with pytest.raises(DataError, match=r"svhn_test_0\.webp: 3200×32 pixels, expected 3200×64"):
        load_data("svhn", "test", root=tmp_path)
    np.savez(tmp_path / "svhn_labels.npz", y_test=np.arange(100) % 10)
    assert len(load_data("svhn", root=tmp_path)) == 100
