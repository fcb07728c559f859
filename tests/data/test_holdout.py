"""What a training is tested on: a split that fits it, or a fifth of each class."""

import importlib.util
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from refiner.data import Data, open_data
from refiner.data.holdout import held_out, train_and_test
from refiner.errors import DataError

Pixels = np.ndarray[Any, Any]


def arrays(folder: Path, **held: Any) -> str:
    np.savez(folder / "a.npz", **held)
    return f"npz:{folder / 'a.npz'}"


def images(folder: Path, pixels: Pixels, *names: str) -> str:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number].transpose(1, 2, 0)).save(folder / name)
    return f"folder:{folder}"


def zeros(count: int, side: int = 8) -> Pixels:
    return np.zeros((count, side, side, 3), np.uint8)


def test_every_fifth_of_a_class() -> None:
    whole = open_data("sample")
    data, test = train_and_test("sample")
    assert data.labels.bincount().tolist() == [16] * 10 and test.labels.bincount().tolist() == [4] * 10
    assert torch.equal(test.images[test.labels == 3], whole.images[whole.labels == 3][4::5])
    assert (data.split, test.split) == ("train", "held out")


def test_a_class_has_one_number_on_both_sides(tmp_path: Path, sample_pixels: Pixels) -> None:
    names = ["train/cat/0.png", "train/dog/1.png", "train/fox/2.png", "test/cat/3.png", "test/fox/4.png"]
    data, test = train_and_test(images(tmp_path, sample_pixels, *names))
    assert data.labels.tolist() == [0, 1, 2] and test.labels.tolist() == [0, 2]
    assert data.class_names == test.class_names == ("cat", "dog", "fox")


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_a_validation_split_where_there_is_no_test(name: str, tmp_path: Path, sample_pixels: Pixels) -> None:
    names = [f"{split}/{label}/0.png" for split in ("train", name) for label in "ab"]
    data, test = train_and_test(images(tmp_path, sample_pixels, *names))
    assert (data.split, test.split, len(data), len(test)) == ("train", name, 2, 2)
    more = {f"{split}_images": zeros(2) for split in ("train", name, "test")}
    more |= {f"{split}_labels": np.arange(2) for split in ("train", name, "test")}
    assert train_and_test(arrays(tmp_path, **more))[1].split == "test"


@pytest.mark.skipif(importlib.util.find_spec("pyarrow") is None, reason="pyarrow is missing")
@pytest.mark.parametrize("name", ["test", "validation"])
def test_hugging_faces_folder_is_trained_on_its_training_split(
    name: str, tmp_path: Path, sample_pixels: Pixels
) -> None:
    import pyarrow as arrow
    import pyarrow.parquet

    images(tmp_path, sample_pixels, *(f"{number}.png" for number in range(6)))
    for split, rows in (("train", range(4)), (name, range(4, 6))):
        held = [(tmp_path / f"{row}.png").read_bytes() for row in rows]
        table = arrow.table({"image": held, "label": [row % 2 for row in rows]})
        pyarrow.parquet.write_table(table, tmp_path / f"{split}-00000-of-00001.parquet")
    data, test = train_and_test(f"parquet:{tmp_path}")
    assert torch.equal(data.images, torch.from_numpy(sample_pixels[:4]))
    assert torch.equal(test.images, torch.from_numpy(sample_pixels[4:6])) and test.split == name


def test_a_test_split_without_the_last_class_has_all_of_them(tmp_path: Path) -> None:
    name = arrays(
        tmp_path,
        train_images=zeros(4),
        train_labels=np.arange(4),
        test_images=zeros(2),
        test_labels=np.array([0, 1]),
    )
    data, test = train_and_test(name)
    assert data.classes == test.classes == 4


@pytest.mark.parametrize(
    ("test_labels", "side", "told"),
    [
        ([0, 2], 8, "test holds the label 2, expected labels in [0, 1] as in train"),
        ([0, 1], 6, "test has images of 6×6 pixels, expected 8×8 as in train; set size to make them equal"),
    ],
)
def test_a_test_split_that_does_not_fit(test_labels: list[int], side: int, told: str, tmp_path: Path) -> None:
    name = arrays(
        tmp_path,
        train_images=zeros(2),
        train_labels=np.arange(2),
        test_images=zeros(2, side),
        test_labels=np.array(test_labels),
    )
    with pytest.raises(DataError) as error:
        train_and_test(name)
    assert str(error.value) == f"{name}: {told}"
    if side != 8:
        assert train_and_test(name, size=8)[1].images.shape == (2, 3, 8, 8)


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("cat", "emu"), "test calls class 1 'emu', expected 'dog' as in train"),
        (("cat", "dog", "emu"), "test names 3 classes, expected 2 as in train"),
    ],
)
def test_a_test_split_with_other_names(
    names: tuple[str, ...], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(name: str, split: str = "train", **_: object) -> Data:
        called = ("cat", "dog") if split == "train" else names
        pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
        return Data(pixels, torch.arange(2), len(called), name, split, called)

    monkeypatch.setattr("refiner.data.holdout.open_data", opened)
    with pytest.raises(DataError) as error:
        train_and_test("parquet:zoo")
    assert str(error.value) == f"parquet:zoo: {told}"


def test_classes_that_nobody_has_take_no_time() -> None:
    labels = torch.arange(20) % 2 * (10**12 - 1)
    data = Data(torch.zeros(20, 3, 4, 4, dtype=torch.uint8), labels, 10**12, "odd", "all")
    began = time.perf_counter()
    kept, test = held_out(data)
    assert (len(kept), len(test)) == (16, 4)
    assert time.perf_counter() - began < 1


def test_too_few_to_hold_any_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="fewer than five samples of every class, none to test on"):
        train_and_test(arrays(tmp_path, images=zeros(4), labels=np.arange(4)))
