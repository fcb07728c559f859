"""The training loop against a plain PyTorch loop, and interrupted trainings against uninterrupted ones."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from refiner.core import Task
from refiner.core.flat_parameters import get_parameters
from refiner.data import ImageDataset, load_sample
from refiner.defenses import Defense, NoDefense, Refiner
from refiner.errors import DataError
from refiner.federation import (
    CheckpointConfig,
    FedAdam,
    FedAvgM,
    FederatedSettings,
    Schedule,
    accuracy,
    train,
)
from refiner.federation.evaluation import evaluate
from refiner.federation.training import Curve
from refiner.models import MLP, LeNet

SAMPLE = load_sample()
IMAGES, LABELS = SAMPLE.images.mul(255).round().byte(), SAMPLE.labels
DATA = ImageDataset(IMAGES[:160], LABELS[:160], 10, "sample", "train")
TEST = ImageDataset(IMAGES[160:], LABELS[160:], 10, "sample", "test")
ONE_ROUND = FederatedSettings(rounds=1, clients=2, batch=4)


small_model = partial(MLP, hidden=8)


def new_task(model: Callable[[], nn.Module] = small_model) -> Task:
    torch.manual_seed(0)
    return Task(model(), example=SAMPLE.images[:1])


def indices_of(*sizes: int) -> list[torch.Tensor]:
    """Random sample indices for clients of these sizes."""
    order = torch.randperm(160, generator=torch.Generator().manual_seed(0))
    return list(order[: sum(sizes)].split(list(sizes)))


def plain_training(client_indices: list[torch.Tensor], settings: FederatedSettings) -> LeNet:
    """FedSGD or FedAvg as a plain PyTorch loop over clients: an independent reference for the engine."""
    torch.manual_seed(0)
    model = LeNet()
    schedule = Schedule(client_indices, settings)
    for round in range(1, settings.rounds + 1):
        start = [p.detach().clone() for p in model.parameters()]
        client_models, counts = [], []
        for client in schedule.participants(round):
            for p, value in zip(model.parameters(), start, strict=True):
                p.data.copy_(value)
            for step in range(settings.local_steps):
                batch = schedule.batch_indices(client, round, step)
                model.zero_grad()
                cross_entropy(model(DATA.images[batch] / 255), DATA.labels[batch]).backward()
                for p in model.parameters():
                    p.data.sub_(settings.lr * p.grad)
            client_models.append([p.detach().clone() for p in model.parameters()])
            counts.append(len(batch))
        for p, *values in zip(model.parameters(), *client_models, strict=True):
            p.data = sum(c * v for c, v in zip(counts, values, strict=True)) / sum(counts)
    return model


@pytest.mark.parametrize(
    ("sizes", "settings"),
    [
        ((40, 40, 40, 40), FederatedSettings(rounds=4, clients=4, batch=8, lr=0.1)),
        ((40, 40, 40, 40), FederatedSettings(rounds=4, clients=4, sampled=2, batch=8, lr=0.1)),
        ((60, 5, 3), FederatedSettings(rounds=3, clients=3, batch=8, lr=0.1)),
        ((40, 40), FederatedSettings(rounds=2, clients=2, batch=8, lr=0.1, local_steps=3)),
    ],
    ids=["all clients", "two of four", "small clients", "several local steps"],
)
def test_training_equals_a_plain_pytorch_loop(sizes: tuple[int, ...], settings: FederatedSettings) -> None:
    task, client_indices = new_task(LeNet), indices_of(*sizes)
    train(task, DATA, TEST, client_indices, settings, NoDefense())
    model = plain_training(client_indices, settings)
    expected = dict(model.named_parameters())
    for name, value in task.parameters().items():
        torch.testing.assert_close(value, expected[name].data, rtol=1e-5, atol=1e-6)
    model.eval()
    correct = (model(TEST.images / 255).argmax(1) == TEST.labels).float().mean()
    assert accuracy(task, TEST) == pytest.approx(float(correct), abs=0.03)


DEFENSES: dict[str, Defense] = {"none": NoDefense(), "refiner": Refiner(iterations=2, search="always")}
SETTINGS = FederatedSettings(rounds=9, clients=2, batch=4, lr=0.05)


def run(task: Task, name: str, **options: Any) -> Curve:
    options = {"server": FedAvgM(), "evaluate_every": 2, **options}
    return train(task, DATA, TEST, indices_of(80, 80), SETTINGS, DEFENSES[name], **options)


Uninterrupted = Callable[[str], tuple[Curve, torch.Tensor]]


@pytest.fixture(scope="module")
def uninterrupted() -> Uninterrupted:
    """`uninterrupted("none")`: curve and parameters of that training, run once for all tests."""

    @cache
    def trained(name: str) -> tuple[Curve, torch.Tensor]:
        task = new_task()
        return run(task, name), get_parameters(task)

    return trained


@pytest.mark.parametrize("name", DEFENSES)
def test_an_interrupted_training_resumes_to_the_same_bits(
    name: str, uninterrupted: Uninterrupted, tmp_path: Path
) -> None:
    def interrupt(rounds: int, _: float | None) -> None:
        if rounds == 7:
            raise KeyboardInterrupt

    expected, parameters = uninterrupted(name)
    resumed = new_task()
    checkpoints = CheckpointConfig(tmp_path, every=3, settings={"lr": 0.05})
    with pytest.raises(KeyboardInterrupt):
        run(new_task(), name, checkpoints=checkpoints, on_round=interrupt)
    assert run(resumed, name, checkpoints=checkpoints) == expected
    assert torch.equal(get_parameters(resumed), parameters)
    log = [json.loads(line) for line in checkpoints.log_file.read_text().splitlines()]
    assert [(row["round"], row["accuracy"]) for row in log] == expected
    assert log[-1]["loss"] == evaluate(resumed, TEST).loss


def test_fedadam_resumes_with_its_round_count(tmp_path: Path) -> None:
    """Its bias correction depends on the number of rounds."""

    def trained(rounds: int, checkpoints: CheckpointConfig | None = None) -> torch.Tensor:
        task, settings = new_task(), FederatedSettings(rounds=rounds, clients=2, batch=4)
        options: Any = {"server": FedAdam(), "checkpoints": checkpoints}
        train(task, DATA, TEST, indices_of(80, 80), settings, NoDefense(), **options)
        return get_parameters(task)

    trained(2, CheckpointConfig(tmp_path))
    assert torch.equal(trained(4, CheckpointConfig(tmp_path)), trained(4))


def test_a_checkpoint_of_another_server_raises(tmp_path: Path) -> None:
    """Even if the settings agree, as the server is not among them here."""
    arguments = (DATA, TEST, indices_of(80, 80), ONE_ROUND, NoDefense())
    train(new_task(), *arguments, server=FedAvgM(), checkpoints=CheckpointConfig(tmp_path))
    message = r"its server state is speed, expected first, rounds, second"
    with pytest.raises(DataError, match=message):
        train(new_task(), *arguments, server=FedAdam(), checkpoints=CheckpointConfig(tmp_path))


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_training import *
torch.set_num_threads({threads})
def print_round(rounds, score):
    print(rounds, flush=True)
    time.sleep(0.05)
run(new_task(), "refiner", checkpoints=CheckpointConfig(Path({out!r}), every=2), on_round=print_round)
"""


@pytest.mark.processes
def test_a_killed_training_resumes_to_the_same_bits(uninterrupted: Uninterrupted, tmp_path: Path) -> None:
    code = KILLED.format(tests=str(Path(__file__).parent), out=str(tmp_path), threads=torch.get_num_threads())
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "5":
            os.kill(process.pid, signal.SIGKILL)
            break
    process.wait()
    process.stdout.close()
    rounds: list[int] = []
    resumed, checkpoints = new_task(), CheckpointConfig(tmp_path, every=2)
    expected, parameters = uninterrupted("refiner")
    curve = run(resumed, "refiner", checkpoints=checkpoints, on_round=lambda done, _: rounds.append(done))
    assert curve == expected
    assert torch.equal(get_parameters(resumed), parameters)
    # It resumed from the last checkpoint of the killed process: that of round 4, or a later one.
    assert not {1, 2, 3, 4} & set(rounds)


def test_a_damaged_checkpoint_or_one_of_other_settings_raises(tmp_path: Path) -> None:
    arguments = (DATA, TEST, indices_of(80, 80), ONE_ROUND, NoDefense())
    checkpoints = CheckpointConfig(tmp_path, every=1, settings={"lr": 0.05})
    train(new_task(), *arguments, checkpoints=checkpoints)
    other_settings = CheckpointConfig(tmp_path, every=1, settings={"lr": 0.1})
    with pytest.raises(DataError, match=r"\blr\b"):
        train(new_task(), *arguments, checkpoints=other_settings)
    content = checkpoints.checkpoint_file.read_bytes()
    for damaged in (content[: len(content) // 2], content[:-1] + bytes([content[-1] ^ 1])):
        checkpoints.checkpoint_file.write_bytes(damaged)
        with pytest.raises(DataError, match="unreadable"):
            train(new_task(), *arguments, checkpoints=checkpoints)
        assert checkpoints.checkpoint_file.read_bytes() == damaged


def test_an_incomplete_last_line_of_the_log_is_replaced(tmp_path: Path) -> None:
    checkpoints = CheckpointConfig(tmp_path, every=2, settings={})

    def curve_of(rounds: int) -> Curve:
        settings = FederatedSettings(rounds=rounds, clients=2, batch=4)
        options: Any = {"evaluate_every": 1, "checkpoints": checkpoints}
        return train(new_task(), DATA, TEST, indices_of(80, 80), settings, NoDefense(), **options)

    curve_of(2)
    with checkpoints.log_file.open("a") as file:
        file.write('{"round": 3, "acc')
    assert [round for round, _ in curve_of(4)] == [1, 2, 3, 4]
    assert len(checkpoints.log_file.read_text().splitlines()) == 4


def test_training_ends_early_when_the_accuracy_stalls(tmp_path: Path) -> None:
    settings, rounds = FederatedSettings(rounds=40, clients=2, batch=8, lr=1e-12), list[int]()

    def trained(**options: Any) -> tuple[Curve, torch.Tensor]:
        task = new_task()
        options = {
            "evaluate_every": 2,
            "patience": 3,
            "checkpoints": CheckpointConfig(tmp_path),
            **options,
        }
        curve = train(task, DATA, TEST, indices_of(40, 40), settings, NoDefense(), **options)
        return curve, get_parameters(task)

    curve, parameters = trained()
    # Nothing is learned at this learning rate, so the first accuracy stays the best.
    assert [round for round, _ in curve] == [2, 4, 6, 8]
    again, same_parameters = trained(on_round=lambda done, _: rounds.append(done))
    assert rounds == [] and again == curve and torch.equal(same_parameters, parameters)
    longer, _ = trained(patience=4)
    assert [round for round, _ in longer] == [2, 4, 6, 8, 10]
