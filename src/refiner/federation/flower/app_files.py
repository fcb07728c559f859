"""The files of a training on Flower: the app that is submitted, and the private settings of each side."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import tomli_w

from refiner.federation.experiment import Experiment
from refiner.federation.flower.client_secrets import load_identity
from refiner.federation.flower.client_settings import ClientSettings
from refiner.federation.flower.identities import identities_json
from refiner.federation.flower.run_config import RunConfig
from refiner.files import write_atomically

_SERVER, _CLIENT = "refiner.federation.flower.server:app", "refiner.federation.flower.client:app"


def app_toml(config: RunConfig, *, server: str = _SERVER, client: str = _CLIENT) -> str:
    """The `pyproject.toml` of a Flower app that trains with `config`; its code is the installed library.

    >>> "serverapp" in app_toml(RunConfig(out="/srv/out"))
    True
    """
    project = {
        "name": "refiner-training",
        "version": "1.0.0",
        "description": "Federated training with refiner, which must be installed on every machine",
        "license": "MIT",
        "dependencies": [],
    }
    app = {
        "publisher": "refiner",
        "components": {"serverapp": server, "clientapp": client},
        "config": config.to_config(),
    }
    return tomli_w.dumps({"project": project, "tool": {"flwr": {"app": app}}})


def write_app(folder: Path, config: RunConfig, **components: str) -> Path:
    """Write an app to a folder that can be passed to `flwr run`."""
    write_atomically(folder / "pyproject.toml", app_toml(config, **components).encode())
    return folder


def run_config_for(experiment: Experiment, folder: Path, **changes: Any) -> RunConfig:
    """The run's configuration of an experiment: every setting that the nodes may know."""
    settings = asdict(experiment.training)
    del settings["seed"]
    settings["sampled"] = settings["sampled"] or 0
    for name in ("data", "model", "server", "evaluate_every"):
        settings[name] = getattr(experiment, name)
    settings["size"] = experiment.size or 0
    return RunConfig(out=str(folder.resolve()), **{**settings, **changes})


def write_server_settings(experiment: Experiment, folder: Path) -> None:
    """Write `server.json`: the settings of a reproducible experiment that only the server may know."""
    settings = {
        "seed": experiment.training.seed,
        "defense": experiment.defense,
        "partition": experiment.partition,
    }
    write_atomically(folder / "server.json", json.dumps(settings).encode())


def write_clients(
    experiment: Experiment, folders: Sequence[Path], device: str = "cpu", aggregation: str = "plain"
) -> None:
    """Write `client.json` of each client of a reproducible experiment to its private folder.

    The seed is in the folders of those that may know it, and in no message.
    """
    for client, folder in enumerate(folders):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings = ClientSettings(
            data=experiment.data,
            defense=experiment.defense,
            size=experiment.size,
            clients=len(folders),
            client=client,
            partition=experiment.partition,
            seed=experiment.training.seed,
            device=device,
            aggregation=aggregation,
        )
        write_atomically(folder / "client.json", json.dumps(asdict(settings)).encode(), private=True)


def write_identities(client_folders: Sequence[Path], server_folder: Path) -> None:
    """Create each client's key, and write the list of public keys to all clients and to the server.

    For clients on machines of their own, distribute the list by a channel that the server does not control.
    """
    public_keys = {
        client: load_identity(folder, create=True).public for client, folder in enumerate(client_folders)
    }
    for folder in (*client_folders, server_folder):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "identities.json", identities_json(public_keys), private=True)
