"""A user's own data: class folders and arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from refiner.data import load_data
from refiner.errors import DataError, RefinerError

Pixels = np.ndarray[Any, Any]


def save_images(pixels: Pixels, *places: Path) -> None:
    for number, place in enumerate(places):
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number].transpose(1, 2, 0)).save(place)


def test_class_folders(tmp_path: Path, sample_pixels: Pixels) -> None:
    names = ["emu/0.png", "cat/1.png", "cat/2.png", "dog/deep/3.png"]
    save_images(sample_pixels, *(tmp_path / name for name in names))
    (tmp_path / "fox").mkdir()
    data = load_data(f"folder:{tmp_path}")
    assert data.class_names == ("cat", "dog", "emu", "fox") and data.classes == 4
    assert data.labels.tolist() == [0, 0, 1, 2] and data.split == "all"
    assert torch.equal(data.images, torch.from_numpy(sample_pixels[[1, 2, 3, 0]]))
    assert data.name == f"folder:{tmp_path}"
    assert load_data(f"folder:{tmp_path}", "all", size=8).images.shape == (4, 3, 8, 8)


def test_folders_of_splits(tmp_path: Path, sample_pixels: Pixels) -> None:
    names = ["train/a/0.png", "train/b/1.png", "test/a/2.png", "test/b/3.png"]
    save_images(sample_pixels, *(tmp_path / name for name in names))
    assert load_data(f"folder:{tmp_path}").split == "train"
    data = load_data(f"folder:{tmp_path}", "test")
    assert torch.equal(data.images, torch.from_numpy(sample_pixels[2:4])) and data.labels.tolist() == [0, 1]
    with pytest.raises(RefinerError, match="split = 'val': expected one of 'train', 'test'"):
        load_data(f"folder:{tmp_path}", "val")
    # With other folders beside them, these are classes.
    save_images(sample_pixels, tmp_path / "bus" / "4.png")
    assert load_data(f"folder:{tmp_path}").class_names == ("bus", "test", "train")


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_validation_folder_is_a_split(name: str, tmp_path: Path, sample_pixels: Pixels) -> None:
    names = [f"{split}/{label}/0.png" for split in ("train", name) for label in "ab"]
    save_images(sample_pixels, *(tmp_path / place for place in names))
    data = load_data(f"folder:{tmp_path}")
    assert (data.split, data.class_names, len(data)) == ("train", ("a", "b"), 2)
    assert torch.equal(load_data(f"folder:{tmp_path}", name).images, torch.from_numpy(sample_pixels[2:4]))


def test_class_has_the_same_number_in_all_splits(tmp_path: Path, sample_pixels: Pixels) -> None:
    names = ["train/cat/0.png", "train/dog/1.png", "train/fox/2.png", "test/fox/3.png", "val/emu/4.png"]
    save_images(sample_pixels, *(tmp_path / name for name in names))
    message = {split: load_data(f"folder:{tmp_path}", split) for split in ("train", "test", "val")}
    assert {data.class_names for data in message.values()} == {("cat", "dog", "emu", "fox")}
    labels = {split: data.labels.tolist() for split, data in message.items()}
    assert labels == {"train": [0, 1, 3], "test": [3], "val": [2]}


def test_classes_set_the_order(tmp_path: Path, sample_pixels: Pixels) -> None:
    save_images(sample_pixels, *(tmp_path / name for name in ("dog/0.png", "fox/1.png", "fox/2.png")))
    data = load_data(f"folder:{tmp_path}", classes=["fox", "cat", "dog"])
    assert data.labels.tolist() == [2, 0, 0] and data.class_names == ("fox", "cat", "dog")
    with pytest.raises(DataError, match=r"fox: not one of the classes cat, dog$"):
        load_data(f"folder:{tmp_path}", classes=["cat", "dog"])
    save_images(sample_pixels, tmp_path / "3.png")
    with pytest.raises(DataError, match=r"no classes, expected its images in folders, one for each class$"):
        load_data(f"folder:{tmp_path}", classes=["dog", "fox"])


def test_one_folder_is_enough_if_classes_are_given(tmp_path: Path, sample_pixels: Pixels) -> None:
    save_images(sample_pixels, tmp_path / "fox" / "0.png")
    data = load_data(f"folder:{tmp_path}", classes=["cat", "fox"])
    assert data.labels.tolist() == [1] and data.classes == 2


def test_images_of_several_sizes_need_a_size(tmp_path: Path, sample_pixels: Pixels) -> None:
    save_images(sample_pixels, tmp_path / "a" / "0.png")
    save_images(sample_pixels[:, :, :20], tmp_path / "b" / "1.png")
    with pytest.raises(DataError, match=r"1\.png: 32×20 pixels, expected 32×32 as in a/0\.png; set size"):
        load_data(f"folder:{tmp_path}")
    assert load_data(f"folder:{tmp_path}", size=20).images.shape == (2, 3, 20, 20)


def test_broken_image_raises(tmp_path: Path, sample_pixels: Pixels) -> None:
    save_images(sample_pixels, tmp_path / "a" / "0.png", tmp_path / "b" / "1.png")
    (tmp_path / "b" / "2.png").write_text("no image")
    with pytest.raises(DataError, match=r"b/2\.png: not a readable image"):
        load_data(f"folder:{tmp_path}")


def test_a_folder_without_classes(tmp_path: Path, sample_pixels: Pixels) -> None:
    save_images(sample_pixels, tmp_path / "0.png", tmp_path / "1.png")
    with pytest.raises(
        DataError, match="no classes, expected its images in two or more folders, one for each class"
    ):
        load_data(f"folder:{tmp_path}")


@pytest.mark.parametrize(("image_key", "label_key"), [("images", "labels"), ("x", "y"), ("images", "label")])
def test_arrays(image_key: str, label_key: str, tmp_path: Path, sample_pixels: Pixels) -> None:
    file = tmp_path / "a.npz"
    pixels = sample_pixels[:4].transpose(0, 2, 3, 1)
    np.savez(file, **{image_key: pixels, label_key: np.array([[0], [5], [1], [2]], np.uint8)})
    data = load_data(f"npz:{file}")
    assert torch.equal(data.images, torch.from_numpy(sample_pixels[:4]))
    assert data.labels.tolist() == [0, 5, 1, 2] and data.classes == 6
    # Floats are the same pixels, and grey is all three channels.
    np.savez(file, **{image_key: (pixels / 255).astype(np.float32), label_key: np.arange(4)})
    assert torch.equal(load_data(f"npz:{file}").images, data.images)
    np.savez(file, **{image_key: pixels[..., 0], label_key: np.arange(4)})
    grey = load_data(f"npz:{file}", size=16).images
    assert grey.shape == (4, 3, 16, 16) and torch.equal(grey[:, 0], grey[:, 2])


def test_arrays_of_splits(tmp_path: Path, sample_pixels: Pixels) -> None:
    pixels = sample_pixels[:4].transpose(0, 2, 3, 1)
    arrays = {
        "train_images": pixels[:3],
        "train_labels": [0, 1, 1],
        "test_images": pixels[3:],
        "test_labels": [1],
    }
    np.savez(tmp_path / "a.npz", **arrays)
    assert len(load_data(f"npz:{tmp_path}/a.npz")) == 3
    assert load_data(f"npz:{tmp_path}/a.npz", "test").labels.tolist() == [1]


def test_other_arrays_of_integers_are_attributes(tmp_path: Path, sample_pixels: Pixels) -> None:
    pixels = sample_pixels[:3].transpose(0, 2, 3, 1)
    arrays = {
        "train_images": pixels,
        "train_labels": [0, 1, 1],
        "train_smoker": np.array([True, False, True]),
        "train_age": [30, -1, 5],
        "train_weight": [0.5, 1, 2],
        "train_low": [-2, 0, 1],
        "test_age": [1, 2, 3],
    }
    np.savez(tmp_path / "a.npz", **arrays)
    data = load_data(f"npz:{tmp_path}/a.npz")
    assert {name: values.tolist() for name, values in data.attributes.items()} == {
        "smoker": [1, 0, 1],
        "age": [30, -1, 5],
    }


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((2, 4, 4, 3), np.uint8)}, "no labels, expected an array 'labels' or 'y'"),
        ({"labels": np.zeros(2, int)}, "contains labels, expected 'images'"),
        (
            {"x": np.zeros((2, 4, 4, 3), np.uint8), "y": np.zeros(3, int)},
            r"labels are int64 \[3\], expected 2 integers",
        ),
        (
            {"x": np.zeros((2, 4, 4, 3), np.uint8), "y": np.array([-1, 0])},
            "labels = -1: expected integers in",
        ),
        (
            {"x": np.zeros((2, 4, 4, 3), np.uint8), "y": np.array([0, 10**12])},
            r"a\.npz: labels = 1000000000000: expected integers in \[0, 32767\]",
        ),
        ({"x": np.zeros((2, 4, 4, 3), np.uint8), "y": np.zeros(2)}, "labels are float64"),
    ],
)
def test_arrays_of_another_shape(arrays: dict[str, Pixels], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=message):
        load_data(f"npz:{tmp_path}/a.npz")
