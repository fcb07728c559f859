"""A client's own settings: its data, its defence, and the requests that it answers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from refiner import checks
from refiner.data.classes import validate_class_names
from refiner.federation.flower.aggregation import make_aggregation
from refiner.federation.flower.client_secrets import check_ownership
from refiner.federation.flower.messages import RefusedRequest, TrainInstructions
from refiner.federation.flower.received_array import quote
from refiner.files import file_error
from refiner.models import MODELS
from refiner.registry import parse_settings


@dataclass(frozen=True)
class ClientSettings:
    """A client's own settings, `client.json` in its private folder.

    Args:
        data: The client's data: a dataset by name, `folder:PATH`, `npz:PATH` or `parquet:PATH`.
        defense: The defence by name, with settings. There is no default: a client without a defence says
            "none".
        size: Side length that images are resized to: that of the server's images.
        classes: The server's class names in its order, by which the folders of `folder:PATH` are numbered;
            for other data of one's own, their number.
        clients: For experiments that split one source across several clients; a real client has all of its
            data.
        client: For such experiments: the position of this client.
        partition: For such experiments: how the source is split.
        seed: For reproducible experiments: the seed of partition, batches and noise. A real client has none;
            these come from its secret or from the operating system.
        model: The only model that a server may ask for, in the words of the server's `--model`. None for any.
        device: Device to train on, `cpu` or `cuda`.
        aggregation: With `secure` this client takes part in secure aggregation, and rejects requests for its
            update alone.
        min_batch: The smallest batch that a server may ask for.
        max_batch: The largest one.
        max_local_steps: The largest number of local steps that a server may ask for.
        max_share: The largest share of its samples that a real client uses in one batch. Below 1 a server
            can't know which ones they are: two sums do not differ by just one client's update.

    Raises:
        SettingError: If a value has the wrong type or lies outside its range.

    >>> ClientSettings(data="sample", defense="refiner").client
    0
    >>> ClientSettings(data="sample", defense="refiner", clients=2, client=2)
    Traceback (most recent call last):
    refiner.errors.SettingError: client = 2: expected an integer in [0, 1]
    """

    data: str
    defense: str
    size: int | None = None
    classes: Sequence[str] | int | None = None
    clients: int = 1
    client: int = 0
    partition: str = "iid"
    seed: int | None = None
    model: str | None = None
    device: str = "cpu"
    aggregation: str = "plain"
    min_batch: int = 1
    max_batch: int = 4096
    max_local_steps: int = 100
    max_share: float = 0.5

    def __post_init__(self) -> None:
        for name in ("data", "defense", "partition"):
            if not isinstance(getattr(self, name), str):
                raise checks.wrong(name, getattr(self, name), "a string")
        if self.model is not None:
            if not isinstance(self.model, str):
                raise checks.wrong("model", self.model, "a string")
            checks.choice("model", parse_settings("model", self.model)[0], MODELS)
        if self.size is not None:
            checks.integer("size", self.size, 1)
        if isinstance(self.classes, int):
            checks.integer("classes", self.classes, 1)
        elif self.classes is not None:
            validate_class_names(self.classes)
        checks.integer("clients", self.clients, 1)
        checks.integer("client", self.client, 0, self.clients - 1)
        if self.seed is not None:
            checks.integer("seed", self.seed, 0, 2**63 - 1)
        checks.choice("device", self.device, ("cpu", "cuda"))
        make_aggregation(self.aggregation)
        checks.integer("min_batch", self.min_batch, 1)
        checks.integer("max_batch", self.max_batch, self.min_batch)
        checks.integer("max_local_steps", self.max_local_steps, 1)
        checks.number("max_share", self.max_share, 0, 1, above=True)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The settings in a client's folder.

        Raises:
            DataError: If `client.json` is missing or malformed, or others could change it.
            SettingError: If a value lies outside its range.
        """
        path = folder / "client.json"
        check_ownership(path)
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise file_error(
                path, f"expected a client's settings as JSON ({reason[:120]})", "a client's settings as JSON"
            ) from error

    def check(self, instructions: TrainInstructions) -> None:
        """Raise if a server asks for more than this client gives; depends on no data.

        Raises:
            RefusedRequest: Names the value and what this client accepts.

        >>> settings = ClientSettings(data="sample", defense="refiner", max_local_steps=4)
        >>> settings.check(TrainInstructions(1, "lenet", 10, batch=8, local_steps=9, lr=0.1))
        Traceback (most recent call last):
        refiner.federation.flower.messages.RefusedRequest: local_steps = 9: this client accepts 1 to 4
        """
        if self.model not in (None, instructions.model):
            raise RefusedRequest(
                f"model = {quote(instructions.model)}: this client accepts {quote(str(self.model))}"
            )
        limits = {
            "batch": (self.min_batch, self.max_batch),
            "local_steps": (1, self.max_local_steps),
        }
        for name, (low, high) in limits.items():
            if not low <= getattr(instructions, name) <= high:
                value = getattr(instructions, name)
                raise RefusedRequest(f"{name} = {value}: this client accepts {low} to {high}")

    def batch_size(self, requested: int, samples: int) -> int:
        """The size of a batch of a client with this many samples, if a server asks for `requested`.

        >>> ClientSettings(data="sample", defense="refiner").batch_size(128, samples=100)
        50
        >>> ClientSettings(data="sample", defense="refiner", seed=0).batch_size(128, samples=100)
        100
        """
        limit = samples if self.seed is not None else max(1, int(self.max_share * samples))
        return min(requested, limit)
