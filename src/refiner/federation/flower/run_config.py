"""The configuration of a run, as passed to `flwr run`. Every node can read it, so it contains no seed."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from refiner import checks
from refiner.checks import unknown_name
from refiner.errors import DataError
from refiner.federation.combine import Mean, make_rule
from refiner.federation.experiment import Experiment
from refiner.federation.federated_settings import FederatedSettings
from refiner.federation.flower.aggregation import Secure, make_aggregation
from refiner.files import file_error

CHOSEN_BY_CLIENTS = "each client's own"
"""What a server records as defence and partition if it does not know them."""


@dataclass(frozen=True)
class RunConfig:
    """The server's settings: the keys of the run's configuration, with dashes instead of underscores.

    Args:
        out: Folder on the server's machine for weights, log, settings and outcome; an absolute path.
        data: The data that the server tests on. Its training split gives the shape of the model's input.
        size: Side length that a user's own images are resized to; 0 leaves them as they are.
        model: A model by name.
        server: A server by name, with settings.
        rounds: Number of rounds.
        clients: Number of nodes that are expected.
        sampled: Number of nodes that take part in a round; 0 for all that are connected.
        batch: Samples in a local step.
        local_steps: Local steps in a round.
        lr: Learning rate of a local step.
        evaluate_every: Rounds between evaluations.
        checkpoint_every: Rounds between checkpoints.
        resume: Continue from the checkpoint in `out`.
        device: Device on which the server evaluates.
        aggregation: `plain`, or `secure` with the same settings as in the clients' `client.json`.
        combine: How plain aggregation combines the updates: `mean`, `median`, `trimmed-mean` or `krum`, with
            settings.
        max_norm: The largest norm of an update in plain aggregation; a longer one is scaled down to it.
        deadline: Seconds that a round, or a step of a secure round, waits for replies. Later ones are left
            out.
        min_train_nodes: Nodes that a round needs, and valid replies. Fewer end the run with an error.
        initial_nodes: Nodes that the first round waits for; 0 for those that take part in a round. Others
            may join later.
        node_timeout: Seconds to wait until enough nodes are connected.

    Raises:
        RefinerError: If a value has the wrong type or lies outside its range.

    >>> RunConfig(out="/srv/out", min_train_nodes=3, clients=2)
    Traceback (most recent call last):
    refiner.errors.SettingError: min_train_nodes = 3: expected an integer in [1, 2]
    """

    out: str
    data: str = "sample"
    size: int = 0
    model: str = "lenet"
    server: str = "fedavg"
    rounds: int = 10
    clients: int = 2
    sampled: int = 0
    batch: int = 128
    local_steps: int = 1
    lr: float = 0.01
    evaluate_every: int = 500
    checkpoint_every: int = 500
    resume: bool = False
    device: str = "cpu"
    aggregation: str = "plain"
    combine: str = "mean"
    max_norm: float = 100.0
    deadline: float = 600.0
    min_train_nodes: int = 1
    initial_nodes: int = 0
    node_timeout: float = 600.0

    def __post_init__(self) -> None:
        if not isinstance(self.out, str) or not Path(self.out).is_absolute():
            raise checks.wrong("out", self.out, "an absolute path on the server's machine")
        checks.integer("size", self.size, 0)
        checks.integer("clients", self.clients, 1)
        checks.integer("sampled", self.sampled, 0, self.clients)
        checks.integer("min_train_nodes", self.min_train_nodes, 1, self.clients)
        checks.integer("initial_nodes", self.initial_nodes, 0, self.clients)
        checks.number("deadline", self.deadline, 0, above=True)
        checks.number("node_timeout", self.node_timeout, 0, above=True)
        checks.flag("resume", self.resume)
        checks.choice("device", self.device, ("cpu", "cuda"))
        checks.number("max_norm", self.max_norm, 0, above=True)
        rule, aggregation = make_rule(self.combine), make_aggregation(self.aggregation)
        if isinstance(aggregation, Secure):
            if rule.name != Mean.name:
                expected = "mean: a server that sees only the sum can't combine updates in another way"
                raise checks.wrong("combine", self.combine, expected)
            aggregation.check(self.sampled or self.clients)
            checks.integer("batch", self.batch, 1, aggregation.max_weight)
        self.experiment()  # raises if one of its values is out of range

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """The settings in a run's configuration.

        >>> RunConfig.read({"out": "/srv/out", "local-steps": 4}).local_steps
        4
        >>> RunConfig.read({"out": "/srv/out", "seed": 4})
        Traceback (most recent call last):
        refiner.errors.DataError: run-config = 'seed': unknown... Known: out, data, ...
        """
        names = {field.name.replace("_", "-"): field.name for field in fields(cls)}
        for key in config:
            if key not in names:
                raise unknown_name(key, list(names), "run-config")
        if "out" not in config:
            raise DataError(
                "out: missing in the run's configuration; expected a folder on the server's machine",
                field="out",
                value=None,
                expected="a folder on the server's machine",
            )
        return cls(**{names[key]: value for key, value in config.items()})

    def to_config(self) -> dict[str, str | int | float | bool]:
        """These settings as a run's configuration."""
        return {key.replace("_", "-"): value for key, value in asdict(self).items()}

    def experiment(
        self,
        seed: int | None = None,
        defense: str = CHOSEN_BY_CLIENTS,
        partition: str = CHOSEN_BY_CLIENTS,
    ) -> Experiment:
        """The experiment that the server runs, with the clients' choices as far as the server knows them."""
        settings = FederatedSettings(
            rounds=self.rounds,
            clients=self.clients,
            sampled=self.sampled or None,
            batch=self.batch,
            local_steps=self.local_steps,
            lr=self.lr,
            seed=seed,
        )
        return Experiment(
            data=self.data,
            size=self.size or None,
            model=self.model,
            defense=defense,
            partition=partition,
            server=self.server,
            evaluate_every=self.evaluate_every,
            training=settings,
        )


def read_server_settings(folder: Path) -> dict[str, Any]:
    """The server's private settings in a reproducible experiment, `server.json` in its folder.

    The seed of the model and of the sampling of clients, and the clients' defence and partition. Empty if
    there is no such file.

    >>> read_server_settings(Path("absent"))
    {}
    """
    path = folder / "server.json"
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {key: content[key] for key in ("seed", "defense", "partition")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise file_error(
            path, "expected JSON with seed, defense and partition", "JSON with seed, defense and partition"
        ) from error
