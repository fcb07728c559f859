"""The training loop of a federated training: rounds, evaluation, checkpoints and a log."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from torch import Tensor

from refiner.checkpoint import read_checkpoint, select_prefix, write_checkpoint
from refiner.core.flat_parameters import get_parameters, set_parameters
from refiner.core.task import Task
from refiner.data.image_dataset import ImageDataset
from refiner.defenses.base import Defense
from refiner.errors import ProtectionError
from refiner.federation.evaluation import evaluate, update_running_statistics
from refiner.federation.federated_settings import FederatedSettings
from refiner.federation.local import LocalClients
from refiner.federation.schedule import Schedule
from refiner.federation.server import FedAvg, Server
from refiner.federation.training_log import Evaluation, append_to_log, read_log

Curve = list[tuple[int, float]]
"""Pairs of rounds done and test accuracy, the share of test samples classified correctly."""

OnRound = Callable[[int, float | None], None]
"""Called after every round with the rounds done and, if it was measured, the test accuracy."""


class TrainingStopped(Exception):
    """A training was asked to stop before its last round, and wrote a checkpoint.

    Args:
        rounds: Rounds done.
    """

    def __init__(self, rounds: int) -> None:
        super().__init__(f"stopped after {rounds} rounds")
        self.rounds = rounds


def never() -> bool:
    """The default `stop`: the training goes on to its last round."""
    return False


def ignore_round(rounds: int, accuracy: float | None) -> None:
    """The default `on_round`: does nothing."""


@dataclass(frozen=True)
class CheckpointConfig:
    """Where a training writes its checkpoint and log, and how often.

    Args:
        folder: The output folder.
        every: Rounds between checkpoints; the last round is always checkpointed.
        settings: The settings that a checkpoint must have been made with to be resumed.
    """

    folder: Path
    every: int = 500
    settings: Mapping[str, object] = field(default_factory=dict)

    @property
    def checkpoint_file(self) -> Path:
        """The file that a training resumes from."""
        return self.folder / "checkpoint.safetensors"

    @property
    def log_file(self) -> Path:
        """The log: one line of JSON for every evaluation."""
        return self.folder / "log.jsonl"


class Clients(Protocol):
    """The clients of a training, on this machine or on others."""

    def mean_update(self, round: int) -> Tensor | None:
        """The mean model update `[N]`, old − new parameters, of the clients that took part in a round.

        None if a round has no result, and the training can go on.
        """

    def state(self) -> dict[str, Tensor]:
        """The clients' state, to be stored in a checkpoint."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue with a state that `state` returned."""


def train(
    task: Task,
    data: ImageDataset,
    test: ImageDataset,
    client_indices: Sequence[Tensor],
    settings: FederatedSettings,
    defense: Defense,
    *,
    server: Server | None = None,
    evaluate_every: int = 500,
    patience: int | None = None,
    checkpoints: CheckpointConfig | None = None,
    on_round: OnRound = ignore_round,
) -> Curve:
    """Train the model of `task` on data split across clients, and return its test accuracy over the rounds.

    With `checkpoints` an interrupted training resumes from its checkpoint. On a CPU the result is
    bit-identical to that of an uninterrupted training. A model with batch norm is evaluated with running
    statistics of up to 2,048 of the training images, which this experiment on one machine has.

    Args:
        task: The model and loss; the model is trained in place.
        data: The training data of all clients.
        test: The data that the accuracy is measured on.
        client_indices: The sample indices of each client, as `iid`, `dirichlet` or `make_partition` returns
            them.
        settings: Rounds, clients, batch size, local steps, learning rate and seed.
        defense: The defence of every client; `NoDefense()` for none.
        server: How the mean update is applied; `FedAvg()` if left out.
        evaluate_every: Rounds between evaluations; the model is always evaluated after the last round.
        patience: End early after this many evaluations in a row that did not improve on the best before them.
        checkpoints: Where to write checkpoint and log; None writes nothing.
        on_round: Called after every round with the rounds done and, if it was measured, the accuracy.

    Returns:
        Pairs of rounds done and test accuracy in [0, 1].

    Raises:
        SettingError: If `client_indices` names another number of clients than `settings`.
        DataError: If the data do not fit the model, or the checkpoint can't be resumed.
        ProtectionError: If the model is no longer finite.

    >>> from refiner.data import iid
    >>> from refiner.data.train_test_split import load_train_and_test
    >>> from refiner.defenses import NoDefense
    >>> data, test = load_train_and_test("sample")
    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, 10))
    >>> task = Task(model, example=data.images[:1] / 255)
    >>> settings = FederatedSettings(rounds=3, clients=4, batch=8)
    >>> curve = train(task, data, test, iid(data.labels, 4), settings, NoDefense(), evaluate_every=2)
    >>> [round for round, _ in curve], curve[-1][1] == evaluate(task, test).accuracy
    ([2, 3], True)
    """
    schedule = Schedule(client_indices, settings)
    clients = LocalClients.seeded(task, data.images, data.labels, schedule, defense)
    evaluations = run_rounds(
        clients,
        task,
        test,
        settings.rounds,
        calibration=data.images,
        server=server,
        evaluate_every=evaluate_every,
        patience=patience,
        checkpoints=checkpoints,
        on_round=on_round,
    )
    return [(each.round, each.accuracy) for each in evaluations]


def run_rounds(
    clients: Clients,
    task: Task,
    test: ImageDataset,
    rounds: int,
    *,
    calibration: Tensor | None = None,
    server: Server | None = None,
    evaluate_every: int = 500,
    patience: int | None = None,
    checkpoints: CheckpointConfig | None = None,
    on_round: OnRound = ignore_round,
    stop: Callable[[], bool] = never,
) -> list[Evaluation]:
    """`train` with any kind of clients: the server's side of every round; returns all evaluations.

    `stop` is called after every round; if it returns true, `TrainingStopped` is raised after a checkpoint.
    `calibration` are the images, uint8 `[S, 3, H, W]`, that the server computes the running statistics of
    batch norm from, see `accuracy`.
    """
    server = server or FedAvg()
    parameters = get_parameters(task)
    state, done = server.init(parameters), 0
    evaluations: list[Evaluation] = []
    if checkpoints is not None and checkpoints.checkpoint_file.exists():

        def restore(tensors: Mapping[str, Tensor]) -> None:
            nonlocal parameters, state
            tensors = {name: tensor.to(parameters.device) for name, tensor in tensors.items()}
            server_state = select_prefix("server", tensors)
            if server_state.keys() != state.keys():
                stored, expected = (", ".join(sorted(each)) or "none" for each in (server_state, state))
                raise ValueError(f"its server state is {stored}, expected {expected}")
            parameters, state = tensors["parameters"], server_state
            clients.restore(select_prefix("defense", tensors))

        done = read_checkpoint(checkpoints.checkpoint_file, checkpoints.settings, restore)
        set_parameters(task, parameters)
        evaluations = read_log(checkpoints.log_file, done)
    elif checkpoints is not None:
        # The log of a training that was stopped before its first checkpoint.
        checkpoints.log_file.unlink(missing_ok=True)
    for round in range(done + 1, rounds + 1):
        if stalled(evaluations, patience):
            break
        update = clients.mean_update(round)
        if update is not None:
            parameters, state = server.step(parameters, update, state)
            set_parameters(task, parameters)
        score = None
        if round % evaluate_every == 0 or round == rounds:
            if not bool(parameters.isfinite().all()):
                raise ProtectionError(f"round {round}: the model is no longer finite; use a lower lr")
            evaluations.append(Evaluation(round, *evaluate(task, test, calibration=calibration)))
            score = evaluations[-1].accuracy
            if checkpoints is not None:
                append_to_log(checkpoints.log_file, evaluations[-1])
        is_last = round == rounds or stalled(evaluations, patience)
        stopping = not is_last and stop()
        if checkpoints is not None and (round % checkpoints.every == 0 or is_last or stopping):
            states = {"server": state, "defense": clients.state()}
            tensors = {f"{owner}.{name}": t for owner, each in states.items() for name, t in each.items()}
            tensors["parameters"] = parameters
            write_checkpoint(checkpoints.checkpoint_file, tensors, checkpoints.settings, round)
        on_round(round, score)
        if stopping:
            raise TrainingStopped(round)
    # Also if no round was left to do: the model that is saved has running statistics of its last weights.
    update_running_statistics(task, calibration)
    # If the log was lost, the model is evaluated again.
    return evaluations or [Evaluation(done, *evaluate(task, test, calibration=calibration))]


def stalled(evaluations: Sequence[Evaluation], patience: int | None) -> bool:
    """Whether none of the last `patience` accuracies is better than the best before them.

    >>> evaluations = [Evaluation(1, 0.5), Evaluation(2, 0.4), Evaluation(3, 0.5)]
    >>> stalled(evaluations, patience=2), stalled(evaluations[:2], patience=2)
    (True, False)
    """
    if patience is None or len(evaluations) <= patience:
        return False
    scores = [each.accuracy for each in evaluations]
    return max(scores[-patience:]) <= max(scores[:-patience])
