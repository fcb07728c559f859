"""Tests of `load_victims`: which images are victims, public or for tuning."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from refiner.audit import load_victims, victims
from refiner.data import ImageDataset, fetch_data, load_sample, write_image_grid
from refiner.errors import DataError


@pytest.mark.processes
def test_cifar10_victims_start_at_image_40000(data_dir: Callable[[str], Path]) -> None:
    loaded = load_victims("cifar10", root=data_dir("cifar10"), victims=3, batch=2)
    sample = load_sample()
    assert loaded.x.shape == (3, 2, 3, 32, 32) and loaded.classes == 10
    # The sample records the positions of its images in CIFAR-10.
    place = next((i for i, index in enumerate(sample.indices) if index - 40_000 < 6), None)
    if place is not None:
        image = loaded.x.flatten(0, 1)[sample.indices[place] - 40_000]
        assert torch.equal(image, sample.images[place])
    assert loaded.public is not None and len(loaded.public) == 1000


def test_dataset_without_a_training_split(data_dir: Callable[[str], Path]) -> None:
    loaded = load_victims("path", root=data_dir("path"), victims=4)
    assert loaded.x.shape == (4, 1, 3, 28, 28) and loaded.classes == 9
    assert loaded.public is not None and len(loaded.public) == 714
    assert not any(torch.equal(a, b) for a in loaded.x[:, 0] for b in loaded.public)


def test_dataset_from_the_cache_gives_the_same_victims(
    data_dir: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFINER_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"pathmnist: not in .*; fetch it: refiner data fetch pathmnist"):
        load_victims("path", victims=4)
    fetch_data("pathmnist", data_dir("path"))
    direct = load_victims("path", root=data_dir("path"), victims=4, batch=2, tuning_victims=1)
    for name in ("path", "pathmnist"):
        loaded = load_victims(name, victims=4, batch=2, tuning_victims=1)
        assert torch.equal(loaded.x, direct.x) and torch.equal(loaded.y, direct.y)
        assert loaded.classes == direct.classes and loaded.tuning_y is not None
        assert loaded.public is not None and torch.equal(loaded.public, direct.public)


def test_tuning_images_are_not_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a CIFAR-10 in which every label is the position of its image."""

    def numbered(name: str, split: str, root: Path) -> ImageDataset:
        images = torch.zeros(50_000, 3, 1, 1, dtype=torch.uint8)
        return ImageDataset(images, torch.arange(50_000), 50_000, name, split)

    monkeypatch.setattr(victims, "load_data", numbered)

    def places(count: int, batch: int, tuned_on: int) -> tuple[list[int], list[int]]:
        loaded = load_victims("cifar10", root=Path(), victims=count, batch=batch, tuning_victims=tuned_on)
        assert loaded.tuning_x is not None and loaded.tuning_y is not None
        assert loaded.tuning_x.shape[:2] == loaded.tuning_y.shape == (tuned_on, batch)
        return loaded.y.flatten().tolist(), loaded.tuning_y.flatten().tolist()

    assert places(2, 1, 3) == ([40_000, 40_001], [41_000, 41_001, 41_002])
    # Behind the victims, if there are more than 1,000.
    assert places(550, 2, 1) == (list(range(40_000, 41_100)), [41_100, 41_101])
    with pytest.raises(DataError, match="tuning_victims = 9001: expected at most 9000"):
        places(2, 1, 9001)
    with pytest.raises(DataError, match="victims = 10001: expected at most 10000 with batches of 1"):
        places(10_001, 1, 1)


def test_tuning_images_follow_the_victims(tmp_path: Path) -> None:
    sample = load_sample()
    loaded = load_victims(victims=3, batch=2, tuning_victims=2)
    plain = load_victims(victims=3, batch=2)
    assert loaded.tuning_x is not None and loaded.tuning_y is not None
    assert torch.equal(loaded.tuning_x.flatten(0, 1), sample.images[6:10])
    assert torch.equal(loaded.tuning_y.flatten(), sample.labels[6:10])
    assert torch.equal(loaded.x, plain.x) and plain.tuning_x is None and loaded.names == plain.names
    with pytest.raises(DataError, match=r"tuning_victims = 98: expected at most 97, since .* has 200 images"):
        load_victims(victims=3, batch=2, tuning_victims=98)
    folder = str(write_images(tmp_path / "own", {f"{number}.png": number for number in range(5)}))
    own = load_victims(folder, victims=2, tuning_victims=2)
    assert own.tuning_x is not None and torch.equal(own.tuning_x[:, 0], sample.images[2:4])
    # Tuning images are public images as well.
    assert own.public is not None and len(own.public) == 3


def test_tuning_images_of_other_datasets_follow_the_victims(data_dir: Callable[[str], Path]) -> None:
    root = data_dir("path")
    loaded, plain = (load_victims("path", root=root, victims=4, tuning_victims=n) for n in (3, 0))
    more = load_victims("path", root=root, victims=7)
    assert loaded.tuning_x is not None and torch.equal(loaded.tuning_x, more.x[4:])
    assert loaded.public is not None and plain.public is not None and torch.equal(loaded.public, plain.public)


def write_images(folder: Path, places: dict[str, int]) -> Path:
    """Write images of the sample into files of a folder."""
    for place, number in places.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        write_image_grid(folder / place, (load_sample().images[number : number + 1] * 255).byte(), columns=1)
    return folder


def test_sub_folders_are_classes(tmp_path: Path) -> None:
    places = {"cat/0.png": 0, "cat/1.png": 1, "cat/2.png": 2, "dog/a.png": 3, "emu/b.png": 4, "emu/c.png": 5}
    loaded = load_victims(str(write_images(tmp_path / "zoo", places)), victims=2, batch=2)
    # The classes alternate, so that the first victims are balanced.
    assert loaded.names == ["cat/0.png", "dog/a.png", "emu/b.png", "cat/1.png"]
    assert loaded.y.tolist() == [[0, 1], [2, 0]] and loaded.classes == 3
    assert loaded.source == "zoo, labels by sub-folder"
    for name, image in zip(loaded.names, loaded.x.flatten(0, 1), strict=True):
        assert torch.equal(image, load_sample().images[places[name]])
    assert loaded.public is not None and len(loaded.public) == 2


def test_flat_folder_has_random_labels(tmp_path: Path) -> None:
    places = {f"{number}.png": number for number in range(8)}
    one, again, other = (
        load_victims(str(write_images(tmp_path / "flat", places)), victims=8, seed=seed) for seed in (0, 0, 1)
    )
    assert one.names == list(places) and one.classes == 10
    assert one.source == "flat, with random labels"
    assert torch.equal(one.y, again.y) and not torch.equal(one.y, other.y)
    assert torch.equal(one.x[:, 0], load_sample().images[:8])


def test_all_images_that_are_no_victims_are_candidates(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "a.npz", images=pixels[[0, 1, 2, 3, 0, 4, 5]], labels=np.arange(7) % 2)
    loaded = load_victims(str(tmp_path / "a.npz"), victims=2, tuning_victims=2)
    assert loaded.public is not None and len(loaded.public) == 4  # not the copy of the first victim
    np.savez(tmp_path / "copies.npz", images=pixels[[0, 1, 0, 1]], labels=np.arange(4) % 2)
    assert load_victims(str(tmp_path / "copies.npz"), victims=2).public is None


def test_candidates_of_a_small_test_split_are_training_images(monkeypatch: pytest.MonkeyPatch) -> None:
    def numbered(name: str, split: str, root: Path, limit: int) -> ImageDataset:
        count = min(limit, {"test": 3, "train": 2500}[split])
        images = torch.arange(count)[:, None, None, None].expand(count, 3, 1, 1)
        return ImageDataset((images % 256).byte(), torch.arange(count), 2500, name, split)

    monkeypatch.setattr(victims, "load_data", numbered)
    monkeypatch.setattr(victims, "available_splits", lambda name, root: ["train", "test"])
    for count, first in ((0, 0), (50, 50), (5000, 1500)):
        loaded = load_victims("svhn", root=Path(), victims=3, public_images=count)
        assert loaded.public is not None and len(loaded.public) == 1000
        # Behind those to learn from, as far as there are enough.
        assert int(255 * loaded.public[0, 0, 0, 0] + 0.5) == first % 256


def test_single_file_is_named_after_itself(tmp_path: Path) -> None:
    assert load_victims(str(write_images(tmp_path, {"me.png": 0}) / "me.png"), victims=1).names == ["me.png"]


def test_images_of_an_npz_are_numbered(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0, 3]))
    loaded = load_victims(str(tmp_path / "a.npz"), victims=2)
    assert loaded.names == ["image 1", "image 2"] and loaded.classes == 4 and loaded.source == "a.npz"


def test_float_labels_are_rejected(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0.5, 1.0]))
    with pytest.raises(DataError, match="labels are float64"):
        load_victims(str(tmp_path / "a.npz"), victims=1)


@pytest.mark.parametrize(
    ("labels", "value"),
    [
        (np.array([0, 32_768]), 32_768),
        (np.array([0, 10**7]), 10**7),
        (np.array([0, 2**62]), 2**62),
        (np.array([0, 2**64 - 1], np.uint64), 2**64 - 1),
        (np.array([-1, 3]), -1),
    ],
)
def test_labels_out_of_range_are_rejected(labels: np.ndarray[Any, Any], value: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8), np.uint8), labels=labels)
    with pytest.raises(DataError) as caught:
        load_victims(str(tmp_path / "a.npz"), victims=1)
    assert str(caught.value) == f"{tmp_path / 'a.npz'}: labels = {value}: expected integers in [0, 32767]"


def test_highest_label_is_accepted(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((1, 8, 8), np.uint8), y=np.array([32_767]))
    assert load_victims(str(tmp_path / "a.npz"), victims=1).classes == 32_768
