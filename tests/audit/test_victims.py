"""Whom an audit looks at: the right images of each data set, and others that are none of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from refiner.audit import load_victims, victims
from refiner.data import get_data, load_sample, write_sheet
from refiner.errors import DataError


def test_victims_of_cifar10_lie_behind_all_training(data_dir: Callable[[str], Path]) -> None:
    found = load_victims("cifar10", root=data_dir("cifar10"), victims=3, batch=2)
    sample = load_sample()
    assert found.x.shape == (3, 2, 3, 32, 32) and found.classes == 10
    # The sample's indices say where in CIFAR-10 its images lie.
    place = next((i for i, index in enumerate(sample.indices) if index - 40_000 < 6), None)
    if place is not None:
        own = found.x.flatten(0, 1)[sample.indices[place] - 40_000]
        assert torch.equal(own, sample.images[place])
    assert found.public is not None and len(found.public) == 1000


def test_a_data_set_without_a_training_split(data_dir: Callable[[str], Path]) -> None:
    found = load_victims("path", root=data_dir("path"), victims=4)
    assert found.x.shape == (4, 1, 3, 28, 28) and found.classes == 9
    assert found.public is not None and len(found.public) == 714
    assert not any(torch.equal(a, b) for a in found.x[:, 0] for b in found.public)


def test_a_data_set_from_the_cache_is_the_same(
    data_dir: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFINER_CACHE", str(tmp_path))
    with pytest.raises(DataError, match=r"pathmnist: not in .*; get it: refiner data get pathmnist"):
        load_victims("path", victims=4)
    get_data("pathmnist", data_dir("path"))
    direct = load_victims("path", root=data_dir("path"), victims=4, batch=2, tuning_victims=1)
    for name in ("path", "pathmnist"):
        found = load_victims(name, victims=4, batch=2, tuning_victims=1)
        assert torch.equal(found.x, direct.x) and torch.equal(found.y, direct.y)
        assert found.classes == direct.classes and found.tuning_y is not None
        assert found.public is not None and torch.equal(found.public, direct.public)


def test_images_to_tune_on_are_no_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    """CIFAR-10 in numbers: every label is the image's place."""

    def numbered(name: str, split: str, root: Path, limit: int | None) -> tuple[Tensor, Tensor]:
        return torch.zeros(50_000, 3, 1, 1, dtype=torch.uint8), torch.arange(50_000)

    monkeypatch.setattr(victims, "load_dataset", numbered)

    def places(count: int, batch: int, tuned_on: int) -> tuple[list[int], list[int]]:
        found = load_victims("cifar10", root=Path(), victims=count, batch=batch, tuning_victims=tuned_on)
        assert found.tuning_x is not None and found.tuning_y is not None
        assert found.tuning_x.shape[:2] == found.tuning_y.shape == (tuned_on, batch)
        return found.y.flatten().tolist(), found.tuning_y.flatten().tolist()

    assert places(2, 1, 3) == ([40_000, 40_001], [41_000, 41_001, 41_002])
    # Where the victims reach further, behind them.
    assert places(550, 2, 1) == (list(range(40_000, 41_100)), [41_100, 41_101])
    with pytest.raises(DataError, match="tuning_victims = 9001: expected at most 9000"):
        places(2, 1, 9001)
    with pytest.raises(DataError, match="victims × batch = 10001 × 1: expected at most 10000"):
        places(10_001, 1, 1)


def test_the_next_images_are_tuned_on(tmp_path: Path) -> None:
    sample = load_sample()
    found = load_victims(victims=3, batch=2, tuning_victims=2)
    plain = load_victims(victims=3, batch=2)
    assert found.tuning_x is not None and found.tuning_y is not None
    assert torch.equal(found.tuning_x.flatten(0, 1), sample.images[6:10])
    assert torch.equal(found.tuning_y.flatten(), sample.labels[6:10])
    assert torch.equal(found.x, plain.x) and plain.tuning_x is None and found.names == plain.names
    with pytest.raises(DataError, match=r"tuning_victims = 98: expected at most 97, what .* has beside"):
        load_victims(victims=3, batch=2, tuning_victims=98)
    folder = str(written(tmp_path / "own", {f"{number}.png": number for number in range(5)}))
    own = load_victims(folder, victims=2, tuning_victims=2)
    assert own.tuning_x is not None and torch.equal(own.tuning_x[:, 0], sample.images[2:4])
    # Those that are tuned on are public images like others.
    assert own.public is not None and len(own.public) == 3


def test_other_data_sets_are_tuned_on_the_next_images_too(data_dir: Callable[[str], Path]) -> None:
    root = data_dir("path")
    found, plain = (load_victims("path", root=root, victims=4, tuning_victims=n) for n in (3, 0))
    more = load_victims("path", root=root, victims=7)
    assert found.tuning_x is not None and torch.equal(found.tuning_x, more.x[4:])
    assert found.public is not None and plain.public is not None and torch.equal(found.public, plain.public)


def written(folder: Path, places: dict[str, int]) -> Path:
    """Images of the sample at places of a folder."""
    for place, number in places.items():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        write_sheet(folder / place, (load_sample().images[number : number + 1] * 255).byte(), columns=1)
    return folder


def test_a_folder_of_classes(tmp_path: Path) -> None:
    places = {"cat/0.png": 0, "cat/1.png": 1, "cat/2.png": 2, "dog/a.png": 3, "emu/b.png": 4, "emu/c.png": 5}
    found = load_victims(str(written(tmp_path / "zoo", places)), victims=2, batch=2)
    # The classes take turns, so that few victims are not all of the first one.
    assert found.names == ["cat/0.png", "dog/a.png", "emu/b.png", "cat/1.png"]
    assert found.y.tolist() == [[0, 1], [2, 0]] and found.classes == 3
    assert found.source == "zoo, labels by sub-folder"
    for name, image in zip(found.names, found.x.flatten(0, 1), strict=True):
        assert torch.equal(image, load_sample().images[places[name]])
    assert found.public is not None and len(found.public) == 2


def test_a_flat_folder_has_drawn_labels(tmp_path: Path) -> None:
    places = {f"{number}.png": number for number in range(8)}
    one, again, other = (
        load_victims(str(written(tmp_path / "flat", places)), victims=8, seed=seed) for seed in (0, 0, 1)
    )
    assert one.names == list(places) and one.classes == 10
    assert one.source == "flat, with drawn labels"
    assert torch.equal(one.y, again.y) and not torch.equal(one.y, other.y)
    assert torch.equal(one.x[:, 0], load_sample().images[:8])


def test_one_file_is_called_by_its_name(tmp_path: Path) -> None:
    assert load_victims(str(written(tmp_path, {"me.png": 0}) / "me.png"), victims=1).names == ["me.png"]


def test_images_without_files_are_numbered(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0, 3]))
    found = load_victims(str(tmp_path / "a.npz"), victims=2)
    assert found.names == ["image 1", "image 2"] and found.classes == 4 and found.source == "a.npz"


def test_labels_that_do_not_fit(tmp_path: Path) -> None:
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
def test_labels_out_of_range(labels: np.ndarray[Any, Any], value: int, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8), np.uint8), labels=labels)
    with pytest.raises(DataError) as caught:
        load_victims(str(tmp_path / "a.npz"), victims=1)
    assert str(caught.value) == f"{tmp_path / 'a.npz'}: labels = {value}: expected integers in [0, 32767]"


def test_the_highest_label(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((1, 8, 8), np.uint8), y=np.array([32_767]))
    assert load_victims(str(tmp_path / "a.npz"), victims=1).classes == 32_768
