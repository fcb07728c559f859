"""The Flower engine of `refiner train`: an experiment on a SuperLink and SuperNodes on this machine."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from refiner.checks import integer
from refiner.data.partition import make_partition
from refiner.data.train_test_split import load_train_and_test
from refiner.defenses import make_defense
from refiner.errors import RefinerError, SettingError
from refiner.federation.experiment import (
    Experiment,
    OnNote,
    Outcome,
    check_output_folder,
    ignore_note,
    note_small_clients,
)
from refiner.federation.flower.aggregation import Secure, make_aggregation
from refiner.federation.flower.app_files import (
    run_config_for,
    write_app,
    write_clients,
    write_identities,
    write_server_settings,
)
from refiner.federation.flower.deployment import Deployment
from refiner.federation.server import make_server
from refiner.federation.training import CheckpointConfig, OnRound, ignore_round
from refiner.models.user_model import is_factory


def train_on_flower(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    checkpoint_every: int = 500,
    device: str = "cpu",
    deadline: float = 600.0,
    aggregation: str = "plain",
    on_round: OnRound = ignore_round,
    on_note: OnNote = ignore_note,
    on_rejected: Callable[[str], None] = lambda reason: None,
) -> Outcome:
    """`run_experiment` with a SuperLink, and a SuperNode for each client, as processes on this machine.

    Args:
        experiment: What to train, and how.
        folder: Output folder. A folder that holds a training is only continued, never overwritten.
        resume: Continue from the checkpoint in `folder`, if there is one.
        checkpoint_every: Rounds between checkpoints.
        device: Device of clients and server, `cpu` or `cuda`.
        deadline: Seconds that a round waits for its clients.
        aggregation: `plain`, or `secure` with settings.
        on_round: Called after every round with the rounds done and, if it was measured, the accuracy.
        on_note: Called before the training with every line that its user should know.
        on_rejected: Called with a line of text for every reply that was left out.

    Returns:
        The accuracy after the last round, accuracies and losses along the way, and the duration.

    Raises:
        RefinerError: If a setting is wrong, or the run failed.
    """
    _check_model(experiment)
    integer("evaluate_every", experiment.evaluate_every, 1)
    every = integer("checkpoint_every", checkpoint_every, 1)
    checkpoints = CheckpointConfig(folder, every, experiment.fixed_settings())
    check_output_folder(checkpoints, resume, experiment.training.rounds)
    config = run_config_for(
        experiment,
        folder,
        checkpoint_every=checkpoint_every,
        resume=resume,
        device=device,
        deadline=deadline,
        aggregation=aggregation,
    )
    _check_experiment(experiment, on_note)
    clients = [folder.resolve() / "clients" / str(client) for client in range(experiment.training.clients)]
    write_server_settings(experiment, folder)
    write_clients(experiment, clients, device, aggregation)
    if isinstance(make_aggregation(aggregation), Secure):
        write_identities(clients, folder)
    environment = _thread_limit(len(clients))
    with _working_folder(folder) as working, Deployment(working, environment=environment) as deployment:
        for client in clients:
            deployment.add_node(client)
        run = deployment.submit(write_app(working / "app", config))
        follow_run(deployment, run, checkpoints, on_round, on_rejected)
    result = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    pairs = {name: [(row[0], row[1]) for row in result[name]] for name in ("curve", "losses")}
    return Outcome(**{**result, **pairs})


def follow_run(
    deployment: Deployment,
    run: str,
    checkpoints: CheckpointConfig,
    on_round: OnRound = ignore_round,
    on_rejected: Callable[[str], None] = lambda reason: None,
) -> None:
    """Wait for the end of a run, and report its rounds along the way; raises if the run failed."""
    folder = checkpoints.folder
    reported, last_status_check = 0, time.monotonic()
    while True:
        end = _end_of_run(folder, run)
        rounds = [line for line in _json_lines(folder / "rounds.jsonl") if line.get("run") == run]
        log = _json_lines(checkpoints.log_file)
        scores = {line["round"]: line["accuracy"] for line in log if "accuracy" in line}
        for line in rounds[reported:]:
            on_round(line["round"], scores.get(line["round"]))
            for node, reason in line["rejected"].items():
                on_rejected(f"round {line['round']}: node {node} left out: {reason}")
        reported = len(rounds)
        if end is not None:
            if end["error"] is not None:
                raise RefinerError(end["error"])
            return
        deployment.check()
        # A ServerApp that was killed writes nothing, but Flower reports its status.
        if time.monotonic() - last_status_check > 60:
            last_status_check = time.monotonic()
            status = deployment.status(run)
            if status.startswith("finished") and _end_of_run(folder, run) is None:
                output = " ".join(deployment.server_log(run).split())[-300:]
                raise RefinerError(f"the run ended with status {status}: {output}")
        time.sleep(0.5)


def _thread_limit(clients: int) -> dict[str, str]:
    """Each client gets its share of the cores: with more threads than cores, all of them are slower."""
    count = str(max(1, (os.cpu_count() or 1) // clients))
    return {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": count}


def _check_model(experiment: Experiment) -> None:
    """Raise for a model that is not built by its name alone: code is never sent to clients."""
    own_code = experiment.model if is_factory(experiment.model) else None
    values = {"model": own_code} | {
        name: getattr(experiment, name) for name in ("weights", "classes", "mean", "std")
    }
    for name, value in values.items():
        if value is not None:
            what = "code of your own can be given" if name == "model" else "can be given"
            raise SettingError(field=name, value=value, problem=f"{what} only with the engine local")


def _check_experiment(experiment: Experiment, on_note: OnNote) -> None:
    """Raise, before any process is started, for what one of the processes would raise."""
    make_defense(experiment.defense)
    make_server(experiment.server)
    data, _ = load_train_and_test(experiment.data, size=experiment.size)
    settings = experiment.training
    indices = make_partition(experiment.partition, data.labels, settings.clients, settings.seed or 0)
    note_small_clients(indices, settings.batch, on_note)


@contextmanager
def _working_folder(folder: Path) -> Iterator[Path]:
    """A folder for the processes' logs and homes; removed at the end unless an error occurred."""
    working = folder.resolve() / "flower"
    shutil.rmtree(working, ignore_errors=True)
    working.mkdir(parents=True)
    yield working
    shutil.rmtree(working, ignore_errors=True)


def _end_of_run(folder: Path, run: str) -> dict[str, Any] | None:
    """How the run ended, or None while it is running."""
    for line in _json_lines(folder / "flower.json"):
        if line.get("run") == run:
            return line
    return None


def _json_lines(path: Path) -> list[dict[str, Any]]:
    """The complete lines of JSON in a file that another process is writing."""
    if not path.exists():
        return []
    values = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            values.append(json.loads(line))
        except ValueError:  # an incomplete line, whose rest is still to come
            break
    return values
