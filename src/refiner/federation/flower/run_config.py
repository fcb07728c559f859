"""A training as `flwr run` is told it. Every node may read that, so no seed is in it."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from refiner import checks
from refiner.checks import nearest
from refiner.errors import DataError
from refiner.federation.experiment import Experiment
from refiner.federation.flower.aggregation import Secure, make_aggregation
from refiner.federation.settings import Training

THEIRS = "each client's own"
"""What a server writes down where it is not told."""


@dataclass(frozen=True)
class Rules:
    """What a server does: the keys of the run's configuration, with dashes.

    >>> Rules(out="/srv/out", minimum=3, clients=2)
    Traceback (most recent call last):
    refiner.errors.SettingError: minimum = 3: expected an integer in [1, 2]
    """

    out: str
    """Folder on the server's machine for weights, log, settings and outcome."""
    data: str = "sample"
    """On which the server tests; its training part gives the shape of the model."""
    size: int = 0
    """The side to which images of one's own are brought; 0 leaves them as they are."""
    model: str = "lenet"
    server: str = "fedavg"
    rounds: int = 10
    clients: int = 2
    """How many nodes there will be."""
    sampled: int = 0
    """How many of them take part in a round; 0 for all who are there."""
    batch: int = 128
    local_steps: int = 1
    lr: float = 0.01
    evaluate_every: int = 500
    checkpoint_every: int = 500
    resume: bool = False
    device: str = "cpu"
    aggregation: str = "plain"
    """secure: the server sees the sum alone; with settings, as the clients have them in `client.json`."""
    deadline: float = 600.0
    """Seconds that a round, or a step of a secure one, waits for answers; who is later is left out of it."""
    minimum: int = 1
    """How many nodes a round needs, and how many good answers."""
    start_with: int = 0
    """How many nodes the first round waits for; 0 for those who take part. Others may join later."""
    patience: float = 600.0
    """Seconds to wait for so many nodes."""

    def __post_init__(self) -> None:
        if not isinstance(self.out, str) or not Path(self.out).is_absolute():
            raise checks.wrong("out", self.out, "an absolute path on the server's machine")
        checks.integer("size", self.size, 0)
        checks.integer("clients", self.clients, 1)
        checks.integer("sampled", self.sampled, 0, self.clients)
        checks.integer("minimum", self.minimum, 1, self.clients)
        checks.integer("start_with", self.start_with, 0, self.clients)
        checks.number("deadline", self.deadline, 0, above=True)
        checks.number("patience", self.patience, 0, above=True)
        checks.flag("resume", self.resume)
        checks.choice("device", self.device, ("cpu", "cuda"))
        way = make_aggregation(self.aggregation)
        if isinstance(way, Secure):
            way.check(self.sampled or self.clients)
            checks.integer("batch", self.batch, 1, way.max_weight)
        self.experiment()

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Self:
        """The rules in a run's configuration.

        >>> Rules.read({"out": "/srv/out", "local-steps": 4}).local_steps
        4
        >>> Rules.read({"out": "/srv/out", "seed": 4})
        Traceback (most recent call last):
        refiner.errors.DataError: run-config = 'seed': unknown... Known: out, data, ...
        """
        known = {field.name.replace("_", "-"): field.name for field in fields(cls)}
        for key in config:
            if key not in known:
                raise nearest(key, list(known), "run-config")
        if "out" not in config:
            raise DataError(
                "out: missing in the run's configuration; expected a folder on the server's machine"
            )
        return cls(**{known[key]: value for key, value in config.items()})

    def config(self) -> dict[str, str | int | float | bool]:
        """The run's configuration that is these rules."""
        return {key.replace("_", "-"): value for key, value in asdict(self).items()}

    def experiment(self, seed: int | None = None, **own: str) -> Experiment:
        """The experiment that the server runs; `own` are choices of the clients that a study knows."""
        training = Training(
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
            defense=own.get("defense", THEIRS),
            partition=own.get("partition", THEIRS),
            server=self.server,
            evaluate_every=self.evaluate_every,
            training=training,
        )


def study_in(folder: Path) -> dict[str, Any]:
    """What a study's server knows beside the run's configuration: `study.json` in its folder, if it is there.

    The seed, with which it draws the model and who takes part, and what the clients' defence and parts are.

    >>> study_in(Path("absent"))
    {}
    """
    path = folder / "study.json"
    if not path.exists():
        return {}
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return {key: held[key] for key in ("seed", "defense", "partition")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: expected JSON with seed, defense and partition") from error
