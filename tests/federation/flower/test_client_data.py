"""A client trains on all of its data, with labels that mean the same at every client."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from refiner import Task
from refiner.core.flat_parameters import get_parameters
from refiner.data import load_sample
from refiner.errors import DataError, SettingError
from refiner.federation import Experiment, FederatedSettings
from refiner.federation.flower.app_files import run_config_for, write_clients
from refiner.federation.flower.client import make_update
from refiner.federation.flower.client_data import load_client_data
from refiner.federation.flower.client_settings import ClientSettings
from refiner.federation.flower.messages import TrainInstructions
from refiner.federation.flower.run_config import RunConfig
from refiner.models import LeNet

CLASSES = ["cat", "dog", "fox"]


def write_images(folder: Path, *names: str, side: int = 32) -> str:
    """Write images of these names, and return the name of the data."""
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        pixels = (load_sample().images[number] * 255).byte().permute(1, 2, 0).numpy()
        Image.fromarray(pixels).resize((side, side)).save(folder / name)
    return f"folder:{folder}"


def samples_used(folder: Path, classes_of_model: int = 10, /, **settings: Any) -> int:
    """The number of samples in the reply of a client with these settings."""
    folder.mkdir(exist_ok=True)
    (folder / "client.json").write_text(json.dumps({"defense": "none", "max_share": 1.0, **settings}))
    task = Task(LeNet(classes_of_model), example=torch.zeros(1, 3, 32, 32))
    instructions = TrainInstructions(
        round=1, model="lenet", classes=classes_of_model, batch=500, local_steps=1, lr=0.1
    )
    content = instructions.content(get_parameters(task), task.shapes)
    return make_update(instructions, content, folder, ClientSettings.read(folder), run=1)[2]


def test_a_client_trains_on_all_of_its_data_unless_the_source_is_shared(tmp_path: Path) -> None:
    assert samples_used(tmp_path / "client", data="sample") == 200
    # An experiment tests on a fifth of each class, which none of its clients may train on.
    assert samples_used(tmp_path / "experiment", data="sample", seed=3) == 160
    assert samples_used(tmp_path / "half", data="sample", clients=2) == 80


def test_a_few_images_are_enough(tmp_path: Path) -> None:
    data = write_images(tmp_path / "zoo", "cat/0.png", "dog/1.png")
    assert samples_used(tmp_path / "client", 2, data=data, classes=["cat", "dog"]) == 2


def test_a_training_split_is_used_completely(tmp_path: Path) -> None:
    data = write_images(tmp_path / "zoo", "train/cat/0.png", "train/dog/1.png", "test/cat/2.png")
    assert samples_used(tmp_path / "client", 2, data=data, classes=["cat", "dog"]) == 2


def test_one_list_of_class_names_numbers_different_folders_consistently(tmp_path: Path) -> None:
    one = write_images(tmp_path / "one", "cat/0.png", "dog/1.png")
    two = write_images(tmp_path / "two", "dog/0.png", "fox/1.png")
    assert load_client_data(one, classes=CLASSES).labels.tolist() == [0, 1]
    assert load_client_data(two, classes=CLASSES).labels.tolist() == [1, 2]
    assert samples_used(tmp_path / "client", 3, data=two, classes=CLASSES) == 2
    with pytest.raises(DataError, match=r"/two/fox: not one of the classes bee, cat, dog$"):
        load_client_data(two, classes=["bee", "cat", "dog"])


def test_data_of_ones_own_need_classes_that_do_not_come_from_the_labels(tmp_path: Path) -> None:
    data = write_images(tmp_path / "zoo", "cat/0.png", "dog/1.png")
    for classes in (None, 2):
        with pytest.raises(DataError) as caught:
            load_client_data(data, classes=classes)
        assert str(caught.value) == (
            'classes: set "classes" in client.json to the server\'s class names, in its order'
        )
    np.savez(tmp_path / "zoo.npz", images=np.zeros((2, 32, 32, 3), np.uint8), labels=np.array([0, 4]))
    data = f"npz:{tmp_path / 'zoo.npz'}"
    for wrong in (None, CLASSES):
        with pytest.raises(DataError, match=r"^classes: set .* to the server's number of classes$"):
            load_client_data(data, classes=wrong)
    assert load_client_data(data, classes=7).classes == 7


def test_a_label_beyond_the_clients_classes_raises() -> None:
    with pytest.raises(DataError) as caught:
        load_client_data("sample", classes=4)
    assert str(caught.value) == "sample: contains labels beyond classes = 4"
    assert load_client_data("sample", classes=20).classes == 20  # numeric labels mean the same everywhere


def test_images_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    write_images(tmp_path / "zoo", "cat/0.png", "dog/1.png", side=48)
    data = write_images(tmp_path / "zoo", "cat/2.png", "dog/3.png", side=40)
    with pytest.raises(DataError, match="set size to make them equal"):
        samples_used(tmp_path / "client", 2, data=data, classes=["cat", "dog"])
    assert samples_used(tmp_path / "client", 2, data=data, classes=["cat", "dog"], size=32) == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0}, "size = 0: expected an integer ≥ 1"),
        ({"size": "32"}, "size = '32': expected an integer ≥ 1"),
        ({"classes": "cat"}, "classes = 'cat': expected"),
        ({"classes": 0}, "classes = 0: expected an integer ≥ 1"),
        ({"max_share": 0}, "max_share = 0: expected a number in (0, 1]"),
        ({"max_batch": 3, "min_batch": 4}, "max_batch = 3: expected an integer ≥ 4"),
        ({"classes": ["cat", "cat"]}, "classes = ['cat', 'cat']: expected"),
    ],
)
def test_wrong_settings_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        ClientSettings(data="folder:zoo", defense="none", **settings)
    assert str(caught.value).startswith(message)


def test_the_size_of_an_experiment_reaches_clients_and_server(tmp_path: Path) -> None:
    experiment = Experiment(data="folder:zoo", size=16, training=FederatedSettings(clients=2))
    write_clients(experiment, [tmp_path / "one"])
    assert ClientSettings.read(tmp_path / "one").size == 16
    config = RunConfig.read(run_config_for(experiment, tmp_path).to_config())
    assert config.experiment().size == 16
    # A run's configuration can't contain None, so 0 stands for it.
    assert RunConfig(out="/srv").experiment().size is None
    with pytest.raises(SettingError, match=r"^size = -1: expected an integer ≥ 0"):
        RunConfig(out="/srv", size=-1)
