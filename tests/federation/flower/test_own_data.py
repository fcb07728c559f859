"""What a client of its own trains on: all of it, in classes that mean the same at every client."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from refiner import Task
from refiner.data import load_sample
from refiner.errors import DataError, SettingError
from refiner.federation import Experiment, Training
from refiner.federation.flower.client import ClientSettings, protected_move
from refiner.federation.flower.messages import Order
from refiner.federation.flower.own_data import client_data
from refiner.federation.flower.run_config import Rules
from refiner.federation.flower.study import rules_of, write_clients
from refiner.federation.local import get_parameters
from refiner.models import LeNet

ZOO = ["cat", "dog", "fox"]


def images(folder: Path, *names: str, side: int = 32) -> str:
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = (load_sample().images[number] * 255).byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize((side, side)).save(folder / name)
    return f"folder:{folder}"


def samples(folder: Path, asked: int = 10, /, **own: Any) -> int:
    """Of how many samples the move is that a client with these settings answers."""
    folder.mkdir(exist_ok=True)
    (folder / "client.json").write_text(json.dumps({"defense": "none", **own}))
    task = Task(LeNet(asked), example=torch.zeros(1, 3, 32, 32))
    order = Order(round=1, model="lenet", classes=asked, batch=500, local_steps=1, lr=0.1)
    answered = protected_move(order, order.content(get_parameters(task), task.shapes), folder)
    return int(answered.metric_records["metrics"]["num-examples"])  # type: ignore[arg-type]


def test_a_client_of_its_own_trains_on_all_of_its_data(tmp_path: Path) -> None:
    assert samples(tmp_path / "own", data="sample") == 200
    # A study tests on a fifth of each class, which no client of it may have seen.
    assert samples(tmp_path / "study", data="sample", seed=3) == 160
    assert samples(tmp_path / "part", data="sample", clients=2) == 80


def test_a_few_images_are_enough(tmp_path: Path) -> None:
    held = images(tmp_path / "zoo", "cat/0.png", "dog/1.png")
    assert samples(tmp_path / "client", 2, data=held) == 2


def test_a_training_split_is_all_of_it(tmp_path: Path) -> None:
    held = images(tmp_path / "zoo", "train/cat/0.png", "train/dog/1.png", "test/cat/2.png")
    assert samples(tmp_path / "client", 2, data=held) == 2


def test_one_list_of_classes_for_folders_that_differ(tmp_path: Path) -> None:
    one = images(tmp_path / "one", "cat/0.png", "dog/1.png")
    two = images(tmp_path / "two", "dog/0.png", "fox/1.png")
    assert client_data(one, 3, classes=ZOO).labels.tolist() == [0, 1]
    assert client_data(two, 3, classes=ZOO).labels.tolist() == [1, 2]
    assert samples(tmp_path / "client", 3, data=two, classes=ZOO) == 2
    with pytest.raises(DataError, match=r"/two/fox: not one of the classes bee, cat, dog$"):
        client_data(two, 3, classes=["bee", "cat", "dog"])


def test_a_folder_that_does_not_fit_is_told_how_to(tmp_path: Path) -> None:
    held = images(tmp_path / "zoo", "cat/0.png", "dog/1.png")
    for wanted in (1, 3):
        with pytest.raises(DataError) as told:
            client_data(held, wanted)
        assert str(told.value) == (
            f'{held}: classes = 2, the server asks for {wanted}; set "classes" in client.json '
            "to the names of the server's, in its order"
        )
    with pytest.raises(DataError) as told:
        client_data(held, 4, classes=ZOO)
    assert str(told.value) == "classes: 3 names, expected 4, as many as the server asks for"


def test_a_label_that_the_model_has_not() -> None:
    with pytest.raises(DataError) as told:
        client_data("sample", 4)
    assert str(told.value) == "sample: holds the label 9, expected labels in [0, 3] as the server asks for"
    assert len(client_data("sample", 20)) == 200  # numbers mean the same everywhere


def test_a_size_of_ones_own(tmp_path: Path) -> None:
    images(tmp_path / "zoo", "cat/0.png", "dog/1.png", side=48)
    held = images(tmp_path / "zoo", "cat/2.png", "dog/3.png", side=40)
    with pytest.raises(DataError, match="set size to make them equal"):
        samples(tmp_path / "client", 2, data=held)
    assert samples(tmp_path / "client", 2, data=held, size=32) == 4


@pytest.mark.parametrize(
    ("own", "told"),
    [
        ({"size": 0}, "size = 0: expected an integer ≥ 1"),
        ({"size": "32"}, "size = '32': expected an integer ≥ 1"),
        ({"classes": "cat"}, "classes = 'cat': expected two or more names, no two alike"),
        ({"classes": ["cat", "cat"]}, "classes = ['cat', 'cat']: expected two or more names, no two alike"),
    ],
)
def test_wrong_settings(own: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError) as error:
        ClientSettings(data="folder:zoo", defense="none", **own)
    assert str(error.value) == told


def test_a_study_tells_all_of_its_processes_the_size(tmp_path: Path) -> None:
    experiment = Experiment(data="folder:zoo", size=16, training=Training(clients=2))
    write_clients(experiment, [tmp_path / "one"])
    assert ClientSettings.read(tmp_path / "one").size == 16
    rules = Rules.read(rules_of(experiment, tmp_path).config())
    assert rules.experiment().size == 16
    # A run's configuration knows no None.
    assert Rules(out="/srv").experiment().size is None
    with pytest.raises(SettingError, match=r"^size = -1: expected an integer ≥ 0"):
        Rules(out="/srv", size=-1)
