"""A whole training on Flower, on this machine: what `refiner train --engine flower` does."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from refiner.checks import integer
from refiner.data.holdout import train_and_test
from refiner.data.partition import make_partition
from refiner.defenses import make_defense
from refiner.errors import RefinerError
from refiner.federation.experiment import Experiment, Outcome, check_folder
from refiner.federation.flower.aggregation import Secure, identities_text, make_aggregation
from refiner.federation.flower.client import ClientSettings
from refiner.federation.flower.client_secrets import identity_in, write_private
from refiner.federation.flower.deployment import Deployment
from refiner.federation.flower.run_config import Rules
from refiner.federation.server import make_server
from refiner.federation.training import Keeping
from refiner.files import write_whole

_SERVER, _CLIENT = "refiner.federation.flower.server:app", "refiner.federation.flower.client:app"


def app_text(rules: Rules, *, server: str = _SERVER, client: str = _CLIENT) -> str:
    """The `pyproject.toml` of a Flower app that trains by `rules`; the code is the installed library's.

    >>> "serverapp" in app_text(Rules(out="/srv/out"))
    True
    """
    about = {
        "name": "refiner-training",
        "version": "1.0.0",
        "description": "Federated training with refiner, which every machine has installed",
        "license": "MIT",
        "dependencies": [],
    }
    app = {
        "publisher": "refiner",
        "components": {"serverapp": server, "clientapp": client},
        "config": rules.config(),
    }
    return tomli_w.dumps({"project": about, "tool": {"flwr": {"app": app}}})


def write_app(folder: Path, rules: Rules, **components: str) -> Path:
    """A folder that `flwr run` takes."""
    write_whole(folder / "pyproject.toml", app_text(rules, **components).encode())
    return folder


def rules_of(experiment: Experiment, folder: Path, **changes: Any) -> Rules:
    """The rules of an experiment: all of it that the nodes may know."""
    training = asdict(experiment.training)
    del training["seed"]
    training["sampled"] = training["sampled"] or 0
    names = ("data", "model", "server", "evaluate_every")
    told = {name: getattr(experiment, name) for name in names} | {"size": experiment.size or 0}
    return Rules(out=str(folder.resolve()), **{**told, **training, **changes})


def write_study(experiment: Experiment, folder: Path) -> None:
    """Write down what the server of a study knows for itself."""
    own = {"defense": experiment.defense, "partition": experiment.partition}
    write_whole(folder / "study.json", json.dumps({"seed": experiment.training.seed, **own}).encode())


def write_clients(
    experiment: Experiment, homes: Sequence[Path], device: str = "cpu", aggregation: str = "plain"
) -> None:
    """Write down what each client of a study knows for itself, in its own folder.

    The seed lies in the folders of those who may know it, and in no message.
    """
    for client, home in enumerate(homes):
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = ClientSettings(
            data=experiment.data,
            defense=experiment.defense,
            size=experiment.size,
            clients=len(homes),
            client=client,
            partition=experiment.partition,
            seed=experiment.training.seed,
            device=device,
            aggregation=aggregation,
        )
        write_private(home / "client.json", json.dumps(asdict(settings)).encode())


def write_identities(homes: Sequence[Path], folder: Path) -> None:
    """Give each client of a study a key, and all of them and the server, whose folder it is, the list.

    On machines of their own the list comes to the clients by a way that is not the server's.
    """
    known = {client: identity_in(home, new=True).public for client, home in enumerate(homes)}
    for each in (*homes, folder):
        each.mkdir(parents=True, exist_ok=True)
        write_private(each / "identities.json", identities_text(known))


def train_on_flower(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    checkpoint_every: int = 500,
    device: str = "cpu",
    deadline: float = 600.0,
    aggregation: str = "plain",
    on_round: Callable[[int, float | None], None] = lambda rounds, accuracy: None,
    on_rejected: Callable[[str], None] = lambda told: None,
) -> Outcome:
    """`run_experiment` with a SuperLink and a SuperNode for each client, as processes that end with it."""
    integer("evaluate_every", experiment.evaluate_every, 1)
    keeping = Keeping(folder, integer("checkpoint_every", checkpoint_every, 1), experiment.settings())
    check_folder(keeping, resume, experiment.training.rounds)
    rules = rules_of(
        experiment,
        folder,
        checkpoint_every=checkpoint_every,
        resume=resume,
        device=device,
        deadline=deadline,
        aggregation=aggregation,
    )
    _check(experiment)
    homes = [folder.resolve() / "clients" / str(client) for client in range(experiment.training.clients)]
    write_study(experiment, folder)
    write_clients(experiment, homes, device, aggregation)
    if isinstance(make_aggregation(aggregation), Secure):
        write_identities(homes, folder)
    with _workshop(folder) as workshop, Deployment(workshop, environment=_threads(len(homes))) as deployment:
        for home in homes:
            deployment.add_node(home)
        run = deployment.submit(write_app(workshop / "app", rules))
        follow(deployment, run, folder, keeping, on_round, on_rejected)
    held = json.loads((folder / "outcome.json").read_text(encoding="utf-8"))
    return Outcome(held["accuracy"], [(row[0], row[1]) for row in held["curve"]], held["seconds"])


def follow(
    deployment: Deployment,
    run: str,
    folder: Path,
    keeping: Keeping,
    on_round: Callable[[int, float | None], None] = lambda rounds, accuracy: None,
    on_rejected: Callable[[str], None] = lambda told: None,
) -> None:
    """Wait for the end of a run, and tell of its rounds along the way."""
    seen, asked = 0, time.monotonic()
    while True:
        ended = _ended(folder, run)
        lines = [line for line in _lines(folder / "rounds.jsonl") if line.get("run") == run]
        scores = {line["round"]: line["accuracy"] for line in _lines(keeping.log) if "accuracy" in line}
        for line in lines[seen:]:
            on_round(line["round"], scores.get(line["round"]))
            for node, reason in line["rejected"].items():
                on_rejected(f"round {line['round']}: node {node} left out: {reason}")
        seen = len(lines)
        if ended is not None:
            if ended["error"] is not None:
                raise RefinerError(ended["error"])
            return
        deployment.check()
        # An app that was killed leaves no word; Flower knows of it.
        if time.monotonic() - asked > 60:
            asked = time.monotonic()
            status = deployment.status(run)
            if status.startswith("finished") and _ended(folder, run) is None:
                told = " ".join(deployment.said(run).split())[-300:]
                raise RefinerError(f"the run ended as {status}: {told}")
        time.sleep(0.5)


def _threads(clients: int) -> dict[str, str]:
    """As many threads for each as the cores have room for: with more, all of them wait."""
    count = str(max(1, (os.cpu_count() or 1) // clients))
    return {} if "OMP_NUM_THREADS" in os.environ else {"OMP_NUM_THREADS": count}


def _check(experiment: Experiment) -> None:
    """Refuse before any process is started what would be refused by one of them."""
    make_defense(experiment.defense)
    make_server(experiment.server)
    data, _ = train_and_test(experiment.data, size=experiment.size)
    training = experiment.training
    make_partition(experiment.partition, data.labels, training.clients, training.seed or 0)


@contextmanager
def _workshop(folder: Path) -> Iterator[Path]:
    """Where the processes keep their logs and homes: kept if something went wrong, else gone."""
    workshop = folder.resolve() / "flower"
    shutil.rmtree(workshop, ignore_errors=True)
    workshop.mkdir(parents=True)
    yield workshop
    shutil.rmtree(workshop, ignore_errors=True)


def _ended(folder: Path, run: str) -> dict[str, Any] | None:
    """How the run ended, if it did."""
    for line in _lines(folder / "flower.json"):
        if line.get("run") == run:
            return line
    return None


def _lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of JSON in a file that another process writes."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # half a line: the rest comes
            break
    return found
