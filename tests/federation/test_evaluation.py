"""Accuracy and loss on test data; with batch norm by running statistics of given images."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from refiner.core import Task
from refiner.data import load_sample
from refiner.data.train_test_split import load_train_and_test
from refiner.federation import Experiment, FederatedSettings, run_experiment
from refiner.federation.evaluation import accuracy, evaluate, update_running_statistics
from refiner.models import recalibrate, resnet10

DATA, TEST = load_train_and_test("sample")


@pytest.fixture
def task() -> Task:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(392, 10))
    return Task(model, example=torch.rand(2, 3, 32, 32))


def test_accuracy_uses_the_statistics_of_the_calibration_images(task: Task) -> None:
    expected = copy.deepcopy(task.model)
    order = torch.randperm(len(DATA.images), generator=torch.Generator().manual_seed(0))
    recalibrate(expected, [DATA.images[order] / 255])
    correct = (expected.eval()(TEST.images / 255).argmax(1) == TEST.labels).float().mean()
    task.model.train()
    assert accuracy(task, TEST, calibration=DATA.images) == pytest.approx(float(correct), abs=1e-6)
    for name, value in task.model.state_dict().items():
        torch.testing.assert_close(value, expected.state_dict()[name])
    assert all(module.training for module in task.model.modules())


def test_a_prediction_does_not_depend_on_the_other_test_images(task: Task) -> None:
    together, alone = (accuracy(task, TEST, chunk, DATA.images) for chunk in (2000, 1))
    assert together == alone


def test_loss_is_the_mean_over_all_test_samples(task: Task) -> None:
    reference = copy.deepcopy(task.model)
    accuracies, losses = zip(*(evaluate(task, TEST, chunk, DATA.images) for chunk in (2000, 7)), strict=True)
    recalibrate(reference, [DATA.images / 255])
    with torch.no_grad():
        expected = float(nn.functional.cross_entropy(reference.eval()(TEST.images / 255), TEST.labels))
    assert losses == pytest.approx([expected] * 2, rel=1e-4)
    assert accuracies == (accuracy(task, TEST, calibration=DATA.images),) * 2


def test_a_loss_that_is_not_finite_is_left_out() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10))
    task = Task(model, example=torch.rand(2, 3, 32, 32))
    with torch.no_grad():
        model[1].weight.fill_(3e38)
    assert evaluate(task, TEST).loss is None


def test_models_without_running_statistics_are_left_alone() -> None:
    for model in (nn.BatchNorm2d(3, track_running_stats=False), nn.GroupNorm(1, 3)):
        network = nn.Sequential(model, nn.Flatten(), nn.Linear(3072, 10))
        task = Task(network, example=torch.rand(2, 3, 32, 32))
        assert not update_running_statistics(task, DATA.images)
        assert accuracy(task, TEST, calibration=DATA.images) == accuracy(task, TEST)


@pytest.mark.processes
def test_training_a_model_with_batch_norm_works_out_of_the_box(tmp_path: Path) -> None:
    images = nn.functional.avg_pool2d(load_sample().images, 4)
    pixels = (255 * images).byte().permute(0, 2, 3, 1).numpy()
    np.savez(tmp_path / "small.npz", images=pixels, labels=load_sample().labels.numpy())
    source = f"npz:{tmp_path / 'small.npz'}"
    training = FederatedSettings(rounds=1, clients=2, batch=4, lr=0.01)
    experiment = Experiment(data=source, model="resnet10:norm=batch", training=training)
    outcome = run_experiment(experiment, tmp_path)
    _, test = load_train_and_test(source)
    weights = load_file(tmp_path / "weights.safetensors")
    assert int(weights["stem.1.num_batches_tracked"]) == 1
    model = resnet10(norm="batch", input_shape=(3, 8, 8))
    model.load_state_dict(weights)
    with torch.no_grad():
        correct = (model.eval()(test.images / 255).argmax(1) == test.labels).float().mean()
    assert outcome.accuracy == pytest.approx(float(correct), abs=1e-6)
    # Nothing is left to do: the running statistics are computed again all the same.
    (tmp_path / "weights.safetensors").unlink()
    run_experiment(experiment, tmp_path, resume=True)
    again = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(value, again[name]) for name, value in weights.items())
