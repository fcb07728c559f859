"""A training against a plain PyTorch loop, and a training that is killed against one that is not."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from refiner.core import Task
from refiner.data import Data, load_sample
from refiner.defenses import Defense, NoDefense, Refiner, make_defense
from refiner.errors import DataError
from refiner.federation import FedAdam, FedAvgM, Keeping, Schedule, Training, accuracy, local, train
from refiner.federation.local import LocalClients, get_parameters
from refiner.federation.training import Curve
from refiner.models import LeNet

SAMPLE = load_sample()
PICTURES, LABELS = SAMPLE.images.mul(255).round().byte(), SAMPLE.labels
DATA = Data(PICTURES[:160], LABELS[:160], 10, "sample", "train")
TEST = Data(PICTURES[160:], LABELS[160:], 10, "sample", "test")


def fresh() -> Task:
    torch.manual_seed(0)
    return Task(LeNet(), example=SAMPLE.images[:1])


def parts(*sizes: int) -> list[torch.Tensor]:
    return list(
        torch.randperm(160, generator=torch.Generator().manual_seed(0))[: sum(sizes)].split(list(sizes))
    )


@pytest.mark.parametrize(
    ("sizes", "training"),
    [
        ((40, 40, 40, 40), Training(rounds=4, clients=4, batch=8, lr=0.1)),
        ((40, 40, 40, 40), Training(rounds=4, clients=4, sampled=2, batch=8, lr=0.1)),
        ((60, 5, 3), Training(rounds=3, clients=3, batch=8, lr=0.1)),
        ((40, 40), Training(rounds=2, clients=2, batch=8, lr=0.1, local_steps=3)),
    ],
    ids=["all", "two of four", "small clients", "several local steps"],
)
def test_equal_to_a_plain_loop(sizes: tuple[int, ...], training: Training) -> None:
    task, shares = fresh(), parts(*sizes)
    train(task, DATA, TEST, shares, training, NoDefense())
    torch.manual_seed(0)
    model = LeNet()
    schedule = Schedule(shares, training)
    for round in range(1, training.rounds + 1):
        start = [p.detach().clone() for p in model.parameters()]
        ends, counts = [], []
        for client in schedule.participants(round):
            for p, value in zip(model.parameters(), start, strict=True):
                p.data.copy_(value)
            for step in range(training.local_steps):
                chosen = schedule.batch(client, round, step)
                model.zero_grad()
                cross_entropy(model(DATA.images[chosen] / 255), DATA.labels[chosen]).backward()
                for p in model.parameters():
                    p.data.sub_(training.lr * p.grad)
            ends.append([p.detach().clone() for p in model.parameters()])
            counts.append(len(chosen))
        for p, *values in zip(model.parameters(), *ends, strict=True):
            p.data = sum(c * v for c, v in zip(counts, values, strict=True)) / sum(counts)
    expected = dict(model.named_parameters())
    for name, value in task.parameters().items():
        torch.testing.assert_close(value, expected[name].data, rtol=1e-5, atol=1e-6)
    model.eval()
    right = (model(TEST.images / 255).argmax(1) == TEST.labels).float().mean()
    assert accuracy(task, TEST) == pytest.approx(float(right), abs=0.03)


@pytest.mark.parametrize(
    "text", ["pruning:rate=0.5", "refiner:iterations=1", "soteria:sensitivity=estimated,probes=1"]
)
def test_local_steps_of_all_clients_at_once(text: str) -> None:
    """Two clients with as many samples go together, the small one alone; Soteria takes one after another."""
    training = Training(rounds=2, clients=3, batch=8, lr=0.1, local_steps=2, seed=0)

    def clients() -> LocalClients:
        schedule = Schedule(parts(40, 5, 40), training)
        return LocalClients.of_study(fresh(), DATA.images, DATA.labels, schedule, make_defense(text))

    together, alone = clients(), clients()
    moves = torch.stack([alone.move(client, 2) for client in range(3)])
    expected = local.weighted_mean(moves, [8, 5, 8])
    assert (together.moves(2) - expected).norm() < 1e-4 * expected.norm()


DEFENSES: dict[str, Defense] = {"none": NoDefense(), "refiner": Refiner(iterations=1, warm_start=True)}
TRAINING = Training(rounds=9, clients=2, batch=4, lr=0.05)


def run(task: Task, name: str, **how: Any) -> Curve:
    how = {"server": FedAvgM(), "evaluate_every": 2, **how}
    return train(task, DATA, TEST, parts(80, 80), TRAINING, DEFENSES[name], **how)


Whole = Callable[[str], tuple[Curve, torch.Tensor]]


@pytest.fixture(scope="module")
def whole() -> Whole:
    """`whole("none")`: how that training goes if nothing stops it, run once for all tests."""

    @cache
    def trained(name: str) -> tuple[Curve, torch.Tensor]:
        task = fresh()
        return run(task, name), get_parameters(task)

    return trained


@pytest.mark.parametrize("name", DEFENSES)
def test_a_stopped_training_goes_on_to_the_same_bit(name: str, whole: Whole, tmp_path: Path) -> None:
    def stop(rounds: int, _: float | None) -> None:
        if rounds == 7:
            raise KeyboardInterrupt

    expected, end = whole(name)
    again = fresh()
    keeping = Keeping(tmp_path, every=3, settings={"lr": 0.05})
    with pytest.raises(KeyboardInterrupt):
        run(fresh(), name, keeping=keeping, on_round=stop)
    assert run(again, name, keeping=keeping) == expected
    assert torch.equal(get_parameters(again), end)
    logged = [json.loads(line) for line in keeping.log.read_text().splitlines()]
    assert [(row["round"], row["accuracy"]) for row in logged] == expected


def test_a_stopped_adam_remembers_its_rounds(tmp_path: Path) -> None:
    """Its steps depend on how many there were."""

    def trained(rounds: int, keeping: Keeping | None = None) -> torch.Tensor:
        task, training = fresh(), Training(rounds=rounds, clients=2, batch=4)
        train(task, DATA, TEST, parts(80, 80), training, NoDefense(), server=FedAdam(), keeping=keeping)
        return get_parameters(task)

    trained(2, Keeping(tmp_path))
    assert torch.equal(trained(4, Keeping(tmp_path)), trained(4))


def test_a_checkpoint_of_another_server(tmp_path: Path) -> None:
    """Its settings may be the same, as the library's own are not among them."""
    once, keeping = Training(rounds=1, clients=2, batch=4), Keeping(tmp_path)
    train(fresh(), DATA, TEST, parts(80, 80), once, NoDefense(), server=FedAvgM(), keeping=keeping)
    told = r"unreadable \(its server remembers speed, expected first, rounds, second\); delete it to start"
    with pytest.raises(DataError, match=told):
        train(fresh(), DATA, TEST, parts(80, 80), once, NoDefense(), server=FedAdam(), keeping=keeping)


KILLED = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_training import *
torch.set_num_threads({threads})
def slow(rounds, score):
    print(rounds, flush=True)
    time.sleep(0.05)
run(fresh(), "refiner", keeping=Keeping(Path({out!r}), every=2), on_round=slow)
"""


def test_killed_anywhere(whole: Whole, tmp_path: Path) -> None:
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
    again, keeping = fresh(), Keeping(tmp_path, every=2)
    expected, end = whole("refiner")
    assert run(again, "refiner", keeping=keeping, on_round=lambda done, _: rounds.append(done)) == expected
    assert torch.equal(get_parameters(again), end)
    # It went on from what the killed process had kept, of round 4 or of a later one if that was quicker.
    assert not {1, 2, 3, 4} & set(rounds)


def test_checkpoints_that_do_not_fit(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path, every=1, settings={"lr": 0.05})
    once = Training(rounds=1, clients=2, batch=4)
    train(fresh(), DATA, TEST, parts(80, 80), once, NoDefense(), keeping=keeping)
    other = Keeping(tmp_path, every=1, settings={"lr": 0.1})
    with pytest.raises(DataError, match="made with another lr; delete it to start anew"):
        train(fresh(), DATA, TEST, parts(80, 80), once, NoDefense(), keeping=other)
    held = keeping.checkpoint.read_bytes()
    for broken in (held[: len(held) // 2], held[:-1] + bytes([held[-1] ^ 1])):
        keeping.checkpoint.write_bytes(broken)
        with pytest.raises(DataError, match="unreadable"):
            train(fresh(), DATA, TEST, parts(80, 80), once, NoDefense(), keeping=keeping)
        assert keeping.checkpoint.read_bytes() == broken


def test_half_a_line_of_the_log_is_written_again(tmp_path: Path) -> None:
    keeping = Keeping(tmp_path, every=2, settings={})
    first = Training(rounds=2, clients=2, batch=4)
    train(fresh(), DATA, TEST, parts(80, 80), first, NoDefense(), evaluate_every=1, keeping=keeping)
    with keeping.log.open("a") as file:
        file.write('{"round": 3, "acc')
    longer = Training(rounds=4, clients=2, batch=4)
    curve = train(fresh(), DATA, TEST, parts(80, 80), longer, NoDefense(), evaluate_every=1, keeping=keeping)
    assert [round for round, _ in curve] == [1, 2, 3, 4]
    assert len(keeping.log.read_text().splitlines()) == 4


def test_it_ends_when_the_tests_get_no_better(tmp_path: Path) -> None:
    training, rounds = Training(rounds=40, clients=2, batch=8, lr=1e-12), list[int]()

    def ended(**how: Any) -> tuple[Curve, torch.Tensor]:
        task = fresh()
        how = {"evaluate_every": 2, "patience": 3, "keeping": Keeping(tmp_path), **how}
        curve = train(task, DATA, TEST, parts(40, 40), training, NoDefense(), **how)
        return curve, get_parameters(task)

    curve, end = ended()
    # Nothing is learned at such a rate, so that the first test stays the best.
    assert [round for round, _ in curve] == [2, 4, 6, 8]
    again, same = ended(on_round=lambda done, _: rounds.append(done))
    assert rounds == [] and again == curve and torch.equal(same, end)
    longer, _ = ended(patience=4)
    assert [round for round, _ in longer] == [2, 4, 6, 8, 10]


@pytest.mark.parametrize(
    ("images", "labels", "told"),
    [
        (PICTURES.float(), LABELS, "images: torch.float32 [200, 3, 32, 32], expected torch.uint8"),
        (PICTURES[:, :, :28], LABELS, "images: torch.uint8 [200, 3, 28, 32], expected torch.uint8"),
        (PICTURES, LABELS[:5], "labels: torch.int64 [5], expected torch.int64 [200]"),
        (PICTURES, LABELS + 1, "labels in [1, 10]: expected [0, 9]"),
    ],
)
def test_data_are_checked_before_the_first_round(
    images: torch.Tensor, labels: torch.Tensor, told: str
) -> None:
    schedule = Schedule(parts(40, 40), Training(clients=2))
    with pytest.raises(DataError) as caught:
        LocalClients(fresh(), images, labels, schedule, NoDefense())
    assert str(caught.value).startswith(told)


def test_many_clients_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(rounds=1, clients=5, batch=8)

    def move() -> torch.Tensor:
        return LocalClients(
            fresh(), PICTURES, LABELS, Schedule(parts(*[20] * 5), training), NoDefense()
        ).moves(1)

    whole = move()
    monkeypatch.setattr(local, "_CLIENTS", 2)
    torch.testing.assert_close(move(), whole)


def test_the_next_batch_is_loaded_ahead_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(rounds=3, clients=2, batch=2)

    def moves(load: Callable[..., Any] | None = None) -> tuple[list[torch.Tensor], list[int]]:
        schedule = Schedule(parts(20, 20), training)
        clients = LocalClients.of_study(fresh(), PICTURES, LABELS, schedule, DEFENSES["refiner"])
        loaded, plain = [], clients._load

        def counted(step: local.Step) -> Any:
            loaded.append(step[1])
            return plain(step) if load is None else load(plain, step, len(loaded))

        monkeypatch.setattr(clients, "_load", counted)
        return [clients.moves(round) for round in (1, 2, 3)], loaded

    def full(plain: Callable[..., Any], step: local.Step, number: int) -> Any:
        if number == 2:
            raise torch.OutOfMemoryError
        return plain(step)

    whole, loaded = moves()
    assert loaded == [1, 2, 3]  # each once, and none that no round needs
    again, loaded = moves(full)
    assert loaded == [1, 2, 2, 3]
    assert all(torch.equal(a, b) for a, b in zip(whole, again, strict=True))
