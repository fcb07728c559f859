"""A whole training: rounds, accuracy now and then, checkpoints, a log to read along."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from refiner.checkpoint import read_checkpoint, under, write_checkpoint
from refiner.core.task import Task
from refiner.data.image_dataset import Data
from refiner.defenses.base import Defense
from refiner.errors import DataError, ProtectionError
from refiner.federation.local import LocalClients, get_parameters, set_parameters
from refiner.federation.schedule import Schedule
from refiner.federation.server import FedAvg, Server
from refiner.federation.settings import Training
from refiner.files import write_whole

Curve = list[tuple[int, float]]
"""Rounds done, and the share of test samples that are right then."""


@dataclass(frozen=True)
class Keeping:
    """Where a training keeps what it has, and how often."""

    folder: Path
    every: int = 500
    settings: Mapping[str, object] = field(default_factory=dict)
    """What makes this training this one; a checkpoint of others is refused."""

    @property
    def checkpoint(self) -> Path:
        """The file to go on from."""
        return self.folder / "checkpoint.safetensors"

    @property
    def log(self) -> Path:
        """A line of JSON for every evaluation."""
        return self.folder / "log.jsonl"


class Clients(Protocol):
    """Those who answer a round, on this machine or on others."""

    def moves(self, round: int) -> Tensor:
        """The mean move `[N]`, old − new parameters, of those who took part."""

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint must hold of them."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""


def train(
    task: Task,
    data: Data,
    test: Data,
    parts: Sequence[Tensor],
    training: Training,
    defense: Defense,
    *,
    server: Server | None = None,
    evaluate_every: int = 500,
    patience: int | None = None,
    keeping: Keeping | None = None,
    on_round: Callable[[int, float | None], None] = lambda rounds, accuracy: None,
) -> Curve:
    """Train the model of `task` on data parted among clients; its accuracy on `test` along the way.

    With `keeping` a training that was stopped goes on from its checkpoint: on a CPU to the same last bit as
    without the break. With `patience` it ends early, after so many tests in a row that were no better than
    the best before them. `on_round` is told of every round, and of the accuracy where it was measured.

    >>> from refiner.data import iid
    >>> from refiner.data.holdout import train_and_test
    >>> from refiner.defenses import NoDefense
    >>> data, test = train_and_test("sample")
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    >>> task, training = Task(model, example=data.images[:1] / 255), Training(rounds=3, clients=4, batch=8)
    >>> curve = train(task, data, test, iid(data.labels, 4), training, NoDefense(), evaluate_every=2)
    >>> [round for round, _ in curve], curve[-1][1] == accuracy(task, test)
    ([2, 3], True)
    """
    clients = LocalClients.of_study(task, data.images, data.labels, Schedule(parts, training), defense)
    return train_with(
        clients,
        task,
        test,
        training.rounds,
        server=server,
        evaluate_every=evaluate_every,
        patience=patience,
        keeping=keeping,
        on_round=on_round,
    )


def train_with(
    clients: Clients,
    task: Task,
    test: Data,
    rounds: int,
    *,
    server: Server | None = None,
    evaluate_every: int = 500,
    patience: int | None = None,
    keeping: Keeping | None = None,
    on_round: Callable[[int, float | None], None] = lambda rounds, accuracy: None,
) -> Curve:
    """`train` with clients wherever they are: what a server does, round by round."""
    server = server or FedAvg()
    values = get_parameters(task)
    state, done, curve = server.init(values), 0, Curve()
    if keeping is not None and keeping.checkpoint.exists():

        def restore(tensors: Mapping[str, Tensor]) -> None:
            nonlocal values, state
            held = {name: value.to(values.device) for name, value in tensors.items()}
            found = under("server", held)
            if found.keys() != state.keys():
                told = [", ".join(sorted(each)) or "nothing" for each in (found, state)]
                raise ValueError(f"its server remembers {told[0]}, expected {told[1]}")
            values, state = held["parameters"], found
            clients.restore(under("defense", held))

        done = read_checkpoint(keeping.checkpoint, keeping.settings, restore)
        set_parameters(task, values)
        curve = _logged(keeping.log, done)
    elif keeping is not None:
        # Of a training that was stopped before it had kept anything.
        keeping.log.unlink(missing_ok=True)
    for round in range(done + 1, rounds + 1):
        if stalled(curve, patience):
            break
        values, state = server.step(values, clients.moves(round), state)
        set_parameters(task, values)
        score = None
        if round % evaluate_every == 0 or round == rounds:
            if not bool(values.isfinite().all()):
                raise ProtectionError(f"round {round}: the model is no longer finite; use a lower lr")
            score = accuracy(task, test)
            curve.append((round, score))
            if keeping is not None:
                _note(keeping.log, round, score)
        ends = round == rounds or stalled(curve, patience)
        if keeping is not None and (round % keeping.every == 0 or ends):
            kept = {"server": state, "defense": clients.state()}
            tensors = {f"{part}.{name}": t for part, each in kept.items() for name, t in each.items()}
            write_checkpoint(keeping.checkpoint, tensors | {"parameters": values}, keeping.settings, round)
        on_round(round, score)
    # A log may be lost; what it held last can be measured again.
    return curve or [(done, accuracy(task, test))]


def stalled(curve: Curve, patience: int | None) -> bool:
    """Whether the last `patience` scores are no better than the best before them.

    >>> stalled([(1, 0.5), (2, 0.4), (3, 0.5)], patience=2), stalled([(1, 0.5), (2, 0.4)], patience=2)
    (True, False)
    """
    if patience is None or len(curve) <= patience:
        return False
    scores = [score for _, score in curve]
    return max(scores[-patience:]) <= max(scores[:-patience])


@torch.no_grad()
def accuracy(task: Task, test: Data, chunk: int = 2000) -> float:
    """The share of test samples that the model of `task` has right.

    >>> from refiner.data import open_data
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    >>> _ = torch.nn.init.zeros_(model[1].weight)  # so it says the same class of every image
    >>> accuracy(Task(model, example=torch.rand(1, 3, 32, 32)), open_data("sample"))
    0.1
    """
    parameters = task.parameters()
    like = next(iter(parameters.values()))
    right = 0
    for images, labels in zip(*(torch.split(t, chunk) for t in (test.images, test.labels)), strict=True):
        scores = task.scores(parameters, images.to(like.device).to(like.dtype) / 255)
        right += int((scores.argmax(1) == labels.to(like.device)).sum())
    return right / len(test.labels)


def _note(log: Path, round: int, score: float) -> None:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(_line(round, score))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise DataError(f"{log}: can't be written ({error.strerror or error})") from error


def _logged(log: Path, rounds: int) -> Curve:
    """The log up to `rounds`; what was written after the checkpoint is measured again."""
    if not log.exists():
        return []
    kept: Curve = []
    lines = log.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            round, score = int(row["round"]), float(row["accuracy"])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):  # half a line: the training was killed as it wrote it
                break
            raise DataError(f"{log}: line {number} is no part of a training's log") from error
        if round <= rounds:
            kept.append((round, score))
    write_whole(log, "".join(_line(round, score) for round, score in kept).encode())
    return kept


def _line(round: int, score: float) -> str:
    return json.dumps({"round": round, "accuracy": score}) + "\n"
