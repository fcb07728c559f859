"""A training by the names of its parts: what `refiner train` runs, and what it leaves in a folder."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from refiner.checkpoint import read_checkpoint
from refiner.checks import integer
from refiner.core.task import Task
from refiner.data.holdout import train_and_test
from refiner.data.image_dataset import Data
from refiner.data.partition import make_partition
from refiner.defenses import make_defense
from refiner.errors import DataError
from refiner.federation.local import LocalClients
from refiner.federation.schedule import Schedule, derived
from refiner.federation.server import make_server
from refiner.federation.settings import Training
from refiner.federation.training import Clients, Curve, Keeping, train_with
from refiner.files import write_whole
from refiner.models import build


@dataclass(frozen=True)
class Experiment:
    """Every choice of a training, as text and numbers.

    >>> Experiment(data="sample", training=Training(rounds=2, clients=2)).model
    'lenet'
    """

    data: str = "cifar10"
    model: str = "lenet"
    defense: str = "none"
    partition: str = "iid"
    server: str = "fedavg"
    evaluate_every: int = 500
    patience: int | None = None
    """End after so many tests in a row that were no better than the best before; None never does."""
    training: Training = field(default_factory=Training)
    size: int | None = None
    """The side to which images of one's own are brought; None leaves them as they are."""

    def settings(self) -> dict[str, Any]:
        """What makes it this experiment; a longer one goes on from a shorter one."""
        held = asdict(self)
        held |= held.pop("training")
        del held["rounds"], held["evaluate_every"], held["patience"]
        return held


@dataclass(frozen=True)
class Outcome:
    """What came of an experiment."""

    accuracy: float
    """The share of test samples that are right after the last round."""
    curve: Curve
    seconds: float
    """Of this run: what was done before it went on is not counted."""

    def maintenance(self, reference: float) -> float:
        """PMM, the share in percent of a reference's accuracy.

        >>> Outcome(0.45, [], 1.0).maintenance(0.5)
        90.0
        """
        return 100 * self.accuracy / reference if reference else math.nan


ClientsOf = Callable[[Task, Data], Clients]
"""The clients of a training, given the server's model and data."""


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    clients_of: ClientsOf | None = None,
    resume: bool = False,
    checkpoint_every: int = 500,
    device: torch.device | None = None,
    on_round: Callable[[int, float | None], None] = lambda rounds, accuracy: None,
) -> Outcome:
    """Train, and leave weights, log, settings and outcome in `folder`; `resume` goes on from those.

    The clients are on this machine, all in one call, unless `clients_of` says where they are.

    >>> import tempfile
    >>> short = Experiment(data="sample", evaluate_every=1, training=Training(rounds=2, clients=2, batch=2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outcome = run_experiment(short, Path(folder))
    ...     sorted(file.name for file in Path(folder).iterdir())
    ['checkpoint.safetensors', 'log.jsonl', 'outcome.json', 'settings.json', 'weights.safetensors']
    >>> [rounds for rounds, accuracy in outcome.curve], outcome.accuracy == outcome.curve[-1][1]
    ([1, 2], True)
    """
    integer("evaluate_every", experiment.evaluate_every, 1)
    if experiment.patience is not None:
        integer("patience", experiment.patience, 1)
    keeping = Keeping(folder, integer("checkpoint_every", checkpoint_every, 1), experiment.settings())
    check_folder(keeping, resume, experiment.training.rounds)
    clients_of = clients_of or clients_here(experiment)
    server = make_server(experiment.server)
    data, test = train_and_test(experiment.data, size=experiment.size)
    torch.manual_seed(derived(experiment.training.seed or 0, "model"))
    model = build(experiment.model, classes=data.classes, input_shape=tuple(data.images.shape[1:]))
    task = Task(model.to(device), example=torch.zeros(1, *data.images.shape[1:], device=device))
    clients = clients_of(task, data)
    write_whole(folder / "settings.json", json.dumps(asdict(experiment), indent=1).encode())
    began = time.perf_counter()
    curve = train_with(
        clients,
        task,
        test,
        experiment.training.rounds,
        server=server,
        evaluate_every=experiment.evaluate_every,
        patience=experiment.patience,
        keeping=keeping,
        on_round=on_round,
    )
    outcome = Outcome(curve[-1][1], curve, time.perf_counter() - began)
    write_whole(folder / "weights.safetensors", save({k: v.cpu() for k, v in model.state_dict().items()}))
    write_whole(folder / "outcome.json", json.dumps(asdict(outcome), indent=1).encode())
    return outcome


def clients_here(experiment: Experiment) -> ClientsOf:
    """The clients of an experiment on this machine, all in one call."""
    defense, training = make_defense(experiment.defense), experiment.training

    def make(task: Task, data: Data) -> Clients:
        parts = make_partition(experiment.partition, data.labels, training.clients, training.seed or 0)
        return LocalClients.of_study(task, data.images, data.labels, Schedule(parts, training), defense)

    return make


def check_folder(keeping: Keeping, resume: bool, rounds: int) -> None:
    """Before anything is written: refuse to write over a training, or to go on from one of another."""
    if not keeping.checkpoint.exists():
        held = [name for name in ("outcome.json", "weights.safetensors") if (keeping.folder / name).exists()]
        if held:
            told = f"holds {' and '.join(held)}, but no checkpoint to go on from; use another folder"
            raise DataError(f"out = {str(keeping.folder)!r}: {told}")
        return
    if not resume:
        raise DataError(
            f"out = {str(keeping.folder)!r}: holds a training; use --resume to go on, or another folder"
        )
    done = read_checkpoint(keeping.checkpoint, keeping.settings, lambda tensors: None)
    if done > rounds:
        raise DataError(f"rounds = {rounds}: expected {done} or more, which the training there has done")
