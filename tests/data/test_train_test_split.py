"""Test data: a split that matches the training data, or a fifth of each class."""

import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from refiner.data import ImageDataset, load_data
from refiner.data.train_test_split import hold_out, load_train_and_test
from refiner.errors import DataError

Pixels = np.ndarray[Any, Any]


def arrays(folder: Path, **contents: Any) -> str:
    np.savez(folder / "a.npz", **contents)
    return f"npz:{folder / 'a.npz'}"


def images(folder: Path, pixels: Pixels, *names: str) -> str:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number].transpose(1, 2, 0)).save(folder / name)
    return f"folder:{folder}"


def zeros(count: int, side: int = 8) -> Pixels:
    return np.zeros((count, side, side, 3), np.uint8)


def test_every_fifth_sample_of_a_class_is_held_out() -> None:
    sample = load_data("sample")
    data, test = load_train_and_test("sample")
    assert data.labels.bincount().tolist() == [16] * 10 and test.labels.bincount().tolist() == [4] * 10
    assert torch.equal(test.images[test.labels == 3], sample.images[sample.labels == 3][4::5])
    assert (data.split, test.split) == ("train", "held out")


def test_class_has_the_same_number_in_train_and_test(tmp_path: Path, sample_pixels: Pixels) -> None:
    names = ["train/cat/0.png", "train/dog/1.png", "train/fox/2.png", "test/cat/3.png", "test/fox/4.png"]
    data, test = load_train_and_test(images(tmp_path, sample_pixels, *names))
    assert data.labels.tolist() == [0, 1, 2] and test.labels.tolist() == [0, 2]
    assert data.class_names == test.class_names == ("cat", "dog", "fox")


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_validation_split_is_used_without_a_test_split(
    name: str, tmp_path: Path, sample_pixels: Pixels
) -> None:
    names = [f"{split}/{label}/0.png" for split in ("train", name) for label in "ab"]
    data, test = load_train_and_test(images(tmp_path, sample_pixels, *names))
    assert (data.split, test.split, len(data), len(test)) == ("train", name, 2, 2)
    more = {f"{split}_images": zeros(2) for split in ("train", name, "test")}
    more |= {f"{split}_labels": np.arange(2) for split in ("train", name, "test")}
    assert load_train_and_test(arrays(tmp_path, **more))[1].split == "test"


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is missing")
@pytest.mark.parametrize("name", ["test", "validation"])
def test_hugging_face_folder_has_train_and_test(name: str, tmp_path: Path, sample_pixels: Pixels) -> None:
    import pyarrow as arrow
    import pyarrow.parquet

    images(tmp_path, sample_pixels, *(f"{number}.png" for number in range(6)))
    for split, rows in (("train", range(4)), (name, range(4, 6))):
        contents = [(tmp_path / f"{row}.png").read_bytes() for row in rows]
        table = arrow.table({"image": contents, "label": [row % 2 for row in rows]})
        pyarrow.parquet.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet")
    data, test = load_train_and_test(f"parquet:{tmp_path}")
    assert torch.equal(data.images, torch.from_numpy(sample_pixels[:4]))
    assert torch.equal(test.images, torch.from_numpy(sample_pixels[4:6])) and test.split == name


def test_test_split_without_the_last_class_has_all_classes(tmp_path: Path) -> None:
    name = arrays(
        tmp_path,
        train_images=zeros(4),
        train_labels=np.arange(4),
        test_images=zeros(2),
        test_labels=np.array([0, 1]),
    )
    data, test = load_train_and_test(name)
    assert data.classes == test.classes == 4


@pytest.mark.parametrize(
    ("test_labels", "side", "message"),
    [
        ([0, 2], 8, "test contains the label 2, expected labels in [0, 1] as in train"),
        ([0, 1], 6, "test has images of 6×6 pixels, expected 8×8 as in train; set size to make them equal"),
    ],
)
def test_mismatched_test_split_raises(
    test_labels: list[int], side: int, message: str, tmp_path: Path
) -> None:
    name = arrays(
        tmp_path,
        train_images=zeros(2),
        train_labels=np.arange(2),
        test_images=zeros(2, side),
        test_labels=np.array(test_labels),
    )
    with pytest.raises(DataError) as error:
        load_train_and_test(name)
    assert str(error.value) == f"{name}: {message}"
    if side != 8:
        assert load_train_and_test(name, size=8)[1].images.shape == (2, 3, 8, 8)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("cat", "emu"), "test calls class 1 'emu', expected 'dog' as in train"),
        (("cat", "dog", "emu"), "test names 3 classes, expected 2 as in train"),
    ],
)
def test_test_split_with_other_class_names_raises(
    names: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str, split: str = "train", **_: object) -> ImageDataset:
        class_names = ("cat", "dog") if split == "train" else names
        pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
        return ImageDataset(pixels, torch.arange(2), len(class_names), name, split, class_names)

    monkeypatch.setattr("refiner.data.train_test_split.load_data", load)
    with pytest.raises(DataError) as error:
        load_train_and_test("parquet:zoo")
    assert str(error.value) == f"parquet:zoo: {message}"


def test_unused_class_numbers_take_no_time() -> None:
    labels = torch.arange(20) % 2 * (10**12 - 1)
    data = ImageDataset(torch.zeros(20, 3, 4, 4, dtype=torch.uint8), labels, 10**12, "odd", "all")
    began = time.perf_counter()
    train, test = hold_out(data)
    assert (len(train), len(test)) == (16, 4)
    assert time.perf_counter() - began < 1


def test_too_few_samples_to_hold_out_raises(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no class has five samples, so there are none to test on"):
        load_train_and_test(arrays(tmp_path, images=zeros(4), labels=np.arange(4)))
