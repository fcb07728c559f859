"""An experiment described by names and numbers: what `refiner train` runs, and the files that it writes."""

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
from refiner.data.image_dataset import ImageDataset
from refiner.data.partition import make_partition
from refiner.data.train_test_split import load_train_and_test
from refiner.defenses import make_defense
from refiner.errors import DataError
from refiner.federation.federated_settings import FederatedSettings
from refiner.federation.local import LocalClients
from refiner.federation.schedule import Schedule, derive_seed
from refiner.federation.server import make_server
from refiner.federation.training import CheckpointConfig, Clients, Curve, OnRound, ignore_round, run_rounds
from refiner.files import locked, write_atomically
from refiner.models import make_model


@dataclass(frozen=True)
class Experiment:
    """Every choice of a federated training, as text and numbers.

    Args:
        data: A dataset by name, `folder:PATH`, `npz:PATH` or `parquet:PATH`.
        model: A model by name, with settings: `resnet18:norm=batch`.
        defense: A defence by name, with settings: `pruning:rate=0.8`.
        partition: How the data are split across clients: `iid` or `dirichlet:CONCENTRATION`.
        server: A server by name, with settings: `fedavgm:server_momentum=0.5`.
        evaluate_every: Rounds between evaluations.
        patience: End after this many evaluations in a row that did not improve on the best before them; None
            never ends early.
        training: Rounds, clients, batch size, local steps, learning rate and seed.
        size: Side length that a user's own images are resized to; None leaves them as they are.

    >>> Experiment(data="sample", training=FederatedSettings(rounds=2, clients=2)).model
    'lenet'
    """

    data: str = "cifar10"
    model: str = "lenet"
    defense: str = "none"
    partition: str = "iid"
    server: str = "fedavg"
    evaluate_every: int = 500
    patience: int | None = None
    training: FederatedSettings = field(default_factory=FederatedSettings)
    size: int | None = None

    def fixed_settings(self) -> dict[str, Any]:
        """The settings that must not change when a training is resumed; it may have more rounds."""
        settings = asdict(self)
        settings |= settings.pop("training")
        del settings["rounds"], settings["evaluate_every"], settings["patience"]
        return settings


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment.

    Args:
        accuracy: The share of test samples classified correctly after the last round.
        curve: Pairs of rounds done and test accuracy.
        seconds: Duration of this run. The time before it was resumed is not included.
    """

    accuracy: float
    curve: Curve
    seconds: float

    def pmm(self, reference_accuracy: float) -> float:
        """PMM, the performance maintenance metric: the accuracy in percent of a reference's accuracy.

        Args:
            reference_accuracy: The accuracy of the same training without a defence, in [0, 1].

        Returns:
            100 · accuracy / reference accuracy; NaN if the reference's accuracy is 0.

        >>> Outcome(0.45, [], 1.0).pmm(0.5)
        90.0
        """
        return 100 * self.accuracy / reference_accuracy if reference_accuracy else math.nan


ClientsFactory = Callable[[Task, ImageDataset], Clients]
"""Makes the clients of a training from the server's model and its training data."""


def run_experiment(
    experiment: Experiment,
    folder: Path,
    *,
    make_clients: ClientsFactory | None = None,
    resume: bool = False,
    checkpoint_every: int = 500,
    device: torch.device | None = None,
    on_round: OnRound = ignore_round,
) -> Outcome:
    """Run a federated training, and write weights, log, settings and outcome to `folder`.

    Args:
        experiment: What to train, and how.
        folder: Output folder. A folder that holds a training is only continued, never overwritten.
        make_clients: Makes the clients; by default they all run on this machine.
        resume: Continue from the checkpoint in `folder`, if there is one.
        checkpoint_every: Rounds between checkpoints.
        device: Where to train; the CPU by default.
        on_round: Called after every round with the rounds done and, if it was measured, the accuracy.

    Returns:
        The accuracy after the last round, the accuracies along the way and the duration.

    Raises:
        SettingError: If a setting lies outside its range.
        DataError: If a name is unknown, the data can't be read, or `folder` holds another training.
        ProtectionError: If the model is no longer finite.

    >>> import tempfile
    >>> settings = FederatedSettings(rounds=2, clients=2, batch=2)
    >>> experiment = Experiment(data="sample", evaluate_every=1, training=settings)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     outcome = run_experiment(experiment, Path(folder))
    ...     sorted(file.name for file in Path(folder).iterdir())
    ['checkpoint.safetensors', 'log.jsonl', 'outcome.json', 'settings.json', 'weights.safetensors']
    >>> [rounds for rounds, accuracy in outcome.curve], outcome.accuracy == outcome.curve[-1][1]
    ([1, 2], True)
    """
    integer("evaluate_every", experiment.evaluate_every, 1)
    if experiment.patience is not None:
        integer("patience", experiment.patience, 1)
    every = integer("checkpoint_every", checkpoint_every, 1)
    checkpoints = CheckpointConfig(folder, every, experiment.fixed_settings())
    check_output_folder(checkpoints, resume, experiment.training.rounds)
    make_clients = make_clients or local_clients(experiment)
    server = make_server(experiment.server)
    data, test = load_train_and_test(experiment.data, size=experiment.size)
    torch.manual_seed(derive_seed(experiment.training.seed or 0, "model"))
    model = make_model(experiment.model, classes=data.classes, input_shape=tuple(data.images.shape[1:]))
    task = Task(model.to(device), example=torch.zeros(2, *data.images.shape[1:], device=device))
    clients = make_clients(task, data)
    busy = DataError(field="out", value=str(folder), problem="another training is writing to it")
    with locked(folder, busy):
        write_atomically(folder / "settings.json", json.dumps(asdict(experiment), indent=1).encode())
        start = time.perf_counter()
        curve = run_rounds(
            clients,
            task,
            test,
            experiment.training.rounds,
            calibration=data.images,
            server=server,
            evaluate_every=experiment.evaluate_every,
            patience=experiment.patience,
            checkpoints=checkpoints,
            on_round=on_round,
        )
        outcome = Outcome(curve[-1][1], curve, time.perf_counter() - start)
        weights = save({name: tensor.cpu() for name, tensor in model.state_dict().items()})
        write_atomically(folder / "weights.safetensors", weights)
        write_atomically(folder / "outcome.json", json.dumps(asdict(outcome), indent=1).encode())
    return outcome


def local_clients(experiment: Experiment) -> ClientsFactory:
    """A factory for an experiment's clients on this machine; a wrong defence raises at once."""
    defense, settings = make_defense(experiment.defense), experiment.training

    def make(task: Task, data: ImageDataset) -> Clients:
        indices = make_partition(experiment.partition, data.labels, settings.clients, settings.seed or 0)
        return LocalClients.seeded(task, data.images, data.labels, Schedule(indices, settings), defense)

    return make


def check_output_folder(checkpoints: CheckpointConfig, resume: bool, rounds: int) -> None:
    """Raise, before anything is written, if the folder holds a training that this one can't continue."""
    folder = checkpoints.folder
    if not checkpoints.checkpoint_file.exists():
        results = [name for name in ("outcome.json", "weights.safetensors") if (folder / name).exists()]
        if results:
            raise DataError(
                field="out",
                value=str(folder),
                expected="a folder without results, or with a checkpoint",
                problem=f"contains {' and '.join(results)}, but no checkpoint to resume from; use another "
                "folder",
            )
        return
    if not resume:
        raise DataError(
            field="out",
            value=str(folder),
            expected="a folder without a training",
            problem="contains a training; use --resume to continue it, or another folder",
        )
    done = read_checkpoint(checkpoints.checkpoint_file, checkpoints.settings, lambda tensors: None)
    if done > rounds:
        raise DataError(
            field="rounds",
            value=rounds,
            expected=f"{done} or more, the rounds that the checkpoint has done",
        )
