"""An experiment described by names and numbers: what `refiner train` runs, and the files that it writes."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

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
from refiner.federation.training import (
    CheckpointConfig,
    Clients,
    Curve,
    OnRound,
    ignore_round,
    never,
    run_rounds,
)
from refiner.files import locked, write_atomically
from refiner.models import Normalized, build_model
from refiner.models.build import check_model_classes


@dataclass(frozen=True)
class Experiment:
    """Every choice of a federated training, as text and numbers.

    Args:
        data: A dataset by name, `folder:PATH`, `npz:PATH` or `parquet:PATH`.
        model: A model by name, with settings: `resnet18:norm=batch`; or code of the user's own, as for
            `refiner.models.build_model`.
        defense: A defence by name, with settings: `pruning:rate=0.8`.
        partition: How the data are split across clients: `iid` or `dirichlet:CONCENTRATION`.
        server: A server by name, with settings: `fedavgm:server_momentum=0.5`.
        evaluate_every: Rounds between evaluations.
        patience: End after this many evaluations in a row that did not improve on the best before them; None
            never ends early.
        training: Rounds, clients, batch size, local steps, learning rate and seed.
        size: Side length that a user's own images are resized to; None leaves them as they are.
        classes: Number of classes of the model; None for those of the data.
        weights: File with the weights to start from; None for a new model.
        mean: Mean of each channel, if the model expects normalised images; given with `std`.
        std: Standard deviation of each channel.

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
    classes: int | None = None
    weights: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    def fixed_settings(self) -> dict[str, Any]:
        """The settings that must not change when a training is resumed; it may have more rounds."""
        # As JSON has them, to be compared with what is in a file.
        settings = json.loads(json.dumps(asdict(self)))
        settings |= settings.pop("training")
        del settings["rounds"], settings["evaluate_every"], settings["patience"]
        return dict(settings)


@dataclass(frozen=True)
class Outcome:
    """The result of an experiment.

    Args:
        accuracy: The share of test samples classified correctly after the last round.
        curve: Pairs of rounds done and test accuracy.
        seconds: Duration of this run. The time before it was resumed is not included.
        rounds_run: Number of rounds in this run; None if unknown.
        upload_bytes: Size of one client's upload in the defence's compact encoding; None for several local
            steps, whose sum has none.
        losses: Pairs of rounds done and mean loss of a test sample, where it is known and finite.
    """

    accuracy: float
    curve: Curve
    seconds: float
    rounds_run: int | None = None
    upload_bytes: int | None = None
    losses: Curve = field(default_factory=list)


OnNote = Callable[[str], None]
"""Called with one line of text."""


def ignore_note(text: str) -> None:
    """The default `on_note`: does nothing."""


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
    on_note: OnNote = ignore_note,
    stop: Callable[[], bool] = never,
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
        on_note: Called before the training with every line that its user should know.
        stop: Called after every round; once it returns true, the training ends with a checkpoint.

    Returns:
        The accuracy after the last round, accuracies and losses along the way, and the duration.

    Raises:
        SettingError: If a setting lies outside its range.
        DataError: If a name is unknown, the data can't be read, or `folder` holds another training.
        ProtectionError: If the model is no longer finite.
        TrainingStopped: If `stop` returned true before the last round; `resume` continues.

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
    make_clients = make_clients or local_clients(experiment, on_note)
    server = make_server(experiment.server)
    data, test = load_train_and_test(experiment.data, size=experiment.size)
    torch.manual_seed(derive_seed(experiment.training.seed or 0, "model"))
    model = _build_model(experiment, data)
    task = Task(model.to(device), example=torch.zeros(2, *data.images.shape[1:], device=device))
    check_model_classes(task, data.labels, experiment.classes)
    clients = make_clients(task, data)
    busy = DataError(field="out", value=str(folder), problem="another training is writing to it")
    with locked(folder, busy):
        write_atomically(folder / "settings.json", json.dumps(asdict(experiment), indent=1).encode())
        start, rounds_run = time.perf_counter(), 0

        def count(round: int, score: float | None) -> None:
            nonlocal rounds_run
            rounds_run += 1
            on_round(round, score)

        evaluations = run_rounds(
            clients,
            task,
            test,
            experiment.training.rounds,
            calibration=data.images,
            server=server,
            evaluate_every=experiment.evaluate_every,
            patience=experiment.patience,
            checkpoints=checkpoints,
            on_round=count,
            stop=stop,
        )
        seconds = time.perf_counter() - start
        outcome = Outcome(
            evaluations[-1].accuracy,
            [(each.round, each.accuracy) for each in evaluations],
            seconds,
            rounds_run,
            _upload_bytes(experiment, task),
            [(each.round, each.loss) for each in evaluations if each.loss is not None],
        )
        trained = model.model if isinstance(model, Normalized) else model
        weights = save({name: tensor.cpu() for name, tensor in trained.state_dict().items()})
        write_atomically(folder / "weights.safetensors", weights)
        write_atomically(folder / "outcome.json", json.dumps(asdict(outcome), indent=1).encode())
    return outcome


def _upload_bytes(experiment: Experiment, task: Task) -> int | None:
    if experiment.training.local_steps > 1:
        return None
    return make_defense(experiment.defense).wire_bytes(task.shapes)


def _build_model(experiment: Experiment, data: ImageDataset) -> nn.Module:
    classes = experiment.classes
    if classes is not None and integer("classes", classes, 2) < data.classes:
        raise DataError(
            field="classes", value=classes, expected=f"at least {data.classes}, the classes of {data.name}"
        )
    return build_model(
        experiment.model,
        data.classes if classes is None else classes,
        tuple(data.images.shape[1:]),
        classes_given=classes is not None,
        weights=None if experiment.weights is None else Path(experiment.weights),
        mean=experiment.mean,
        std=experiment.std,
    )


def local_clients(experiment: Experiment, on_note: OnNote = ignore_note) -> ClientsFactory:
    """A factory for an experiment's clients on this machine; a wrong defence raises at once."""
    defense, settings = make_defense(experiment.defense), experiment.training

    def make(task: Task, data: ImageDataset) -> Clients:
        indices = make_partition(experiment.partition, data.labels, settings.clients, settings.seed or 0)
        note_small_clients(indices, settings.batch, on_note)
        return LocalClients.seeded(task, data.images, data.labels, Schedule(indices, settings), defense)

    return make


def note_small_clients(client_indices: Sequence[Tensor], batch: int, on_note: OnNote) -> None:
    """Say in one line which clients have fewer samples than a batch.

    >>> note_small_clients([torch.arange(3), torch.arange(200)], 128, print)
    1 of 2 clients has fewer samples than a batch of 128 and uses all of them in every step (the fewest: 3)
    """
    small = [len(indices) for indices in client_indices if len(indices) < batch]
    if small:
        verbs = ("has", "uses") if len(small) == 1 else ("have", "use")
        on_note(
            f"{len(small)} of {len(client_indices)} clients {verbs[0]} fewer samples than a batch of {batch} "
            f"and {verbs[1]} all of them in every step (the fewest: {min(small)})"
        )


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
