"""The client of a training as a Flower app: its own data and defence; only protected updates are sent.

The client's data and defence are set in `client.json` in its private folder. A server sends the round, the
training instructions and the model; no message of a server can choose a seed, a defence or the data.
"""

import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import Mod
from torch import Tensor

from refiner import checks
from refiner.core.task import Task
from refiner.data.classes import validate_class_names
from refiner.data.partition import make_partition
from refiner.defenses import make_defense
from refiner.errors import DataError
from refiner.federation.federated_settings import FederatedSettings
from refiner.federation.flower.aggregation import Secure, make_aggregation, session_name
from refiner.federation.flower.client_data import load_client_data
from refiner.federation.flower.client_secrets import (
    client_folder,
    load_defense_state,
    load_secret,
    save_defense_state,
)
from refiner.federation.flower.messages import Shapes, TrainInstructions, from_arrays, update_content
from refiner.federation.flower.secure_client import SecureParticipant
from refiner.federation.local import LocalClients, get_parameters, set_parameters
from refiner.federation.schedule import Schedule, derive_seed
from refiner.files import file_error
from refiner.models import make_model

CLIENT_ERROR = 100
"""The code of the error reply of a client that could not protect its data."""


@dataclass(frozen=True)
class ClientSettings:
    """A client's own settings, `client.json` in its private folder.

    Args:
        data: The client's data: a dataset by name, `folder:PATH`, `npz:PATH` or `parquet:PATH`.
        defense: The defence by name, with settings. There is no default: a client without a defence says
            "none".
        size: Side length that images are resized to: that of the server's images.
        classes: The server's class names in its order, by which the folders of `folder:PATH` are numbered.
        clients: For experiments that split one source across several clients; a real client has all of its
            data.
        client: For such experiments: the position of this client.
        partition: For such experiments: how the source is split.
        seed: For reproducible experiments: the seed of partition, batches and noise. A real client has none;
            these come from its secret or from the operating system.
        device: Device to train on, `cpu` or `cuda`.
        aggregation: With `secure` this client takes part in secure aggregation, and rejects requests for its
            update alone.

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
    classes: Sequence[str] | None = None
    clients: int = 1
    client: int = 0
    partition: str = "iid"
    seed: int | None = None
    device: str = "cpu"
    aggregation: str = "plain"

    def __post_init__(self) -> None:
        for name in ("data", "defense", "partition"):
            if not isinstance(getattr(self, name), str):
                raise checks.wrong(name, getattr(self, name), "a string")
        if self.size is not None:
            checks.integer("size", self.size, 1)
        if self.classes is not None:
            validate_class_names(self.classes)
        checks.integer("clients", self.clients, 1)
        checks.integer("client", self.client, 0, self.clients - 1)
        if self.seed is not None:
            checks.integer("seed", self.seed, 0, 2**63 - 1)
        checks.choice("device", self.device, ("cpu", "cuda"))
        make_aggregation(self.aggregation)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The settings in a client's folder.

        Raises:
            DataError: If `client.json` is missing or malformed.
            SettingError: If a value lies outside its range.
        """
        path = folder / "client.json"
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise file_error(
                path, f"expected a client's settings as JSON ({reason[:120]})", "a client's settings as JSON"
            ) from error


def protected_reply(instructions: TrainInstructions, content: RecordDict, folder: Path) -> RecordDict:
    """The content of a client's reply: its protected model update. Raises if the defence fails."""
    return update_content(*make_update(instructions, content, folder, ClientSettings.read(folder)))


def make_update(
    instructions: TrainInstructions, content: RecordDict, folder: Path, settings: ClientSettings
) -> tuple[Tensor, Shapes, int]:
    """A client's protected model update `[N]`, the shapes of its parameters, and its number of samples."""
    data = load_client_data(
        settings.data,
        instructions.classes,
        hold_out_test=settings.clients > 1 or settings.seed is not None,
        size=settings.size,
        classes=settings.classes,
    )
    indices = make_partition(settings.partition, data.labels, settings.clients, settings.seed or 0)
    secret = load_secret(folder) if settings.seed is None else None
    input_shape = tuple(data.images.shape[1:])
    model = make_model(instructions.model, classes=instructions.classes, input_shape=input_shape)
    device = torch.device(settings.device)
    task = Task(model.to(device), example=torch.zeros(1, *input_shape, device=device))
    set_parameters(task, from_arrays(content, task.shapes, get_parameters(task)))
    if settings.seed is not None:
        key, batch_seed = derive_seed(settings.seed, "secret"), settings.seed
    else:
        # The key uses 256 bits of the secret; a seed has only 63.
        key, batch_seed = _derive_number(secret, "defence"), _derive_number(secret, "batches") >> 193
    defense = make_defense(settings.defense).with_seeded_key(key)
    federated = FederatedSettings(
        rounds=instructions.round,
        clients=settings.clients,
        batch=instructions.batch,
        local_steps=instructions.local_steps,
        lr=instructions.lr,
        seed=batch_seed,
    )
    schedule = Schedule(indices, federated)
    clients = LocalClients(task, data.images, data.labels, schedule, defense, settings.seed)
    # A new training starts without a state, as it would on one machine.
    if instructions.round > 1:
        clients.restore(load_defense_state(folder))
    update: Tensor = clients.client_update(settings.client, instructions.round)
    save_defense_state(folder, clients.state())
    return update, task.shapes, schedule.batch_size(settings.client)


def reply_content(content: RecordDict, folder: Path, run: int, node: int) -> RecordDict:
    """The content of a client's reply; its own settings decide on the aggregation, not the request."""
    settings = ClientSettings.read(folder)
    aggregation = make_aggregation(settings.aggregation)
    if not isinstance(aggregation, Secure):
        return update_content(*make_update(TrainInstructions.read(content), content, folder, settings))

    def update_of(round: int) -> tuple[Tensor, int]:
        instructions = TrainInstructions.read(content)
        if instructions.round != round:
            raise DataError(
                f"instructions: for round {instructions.round}, requested in round {round}",
                field="instructions",
                value=instructions.round,
                expected=f"instructions for round {round}",
            )
        update, _, samples = make_update(instructions, content, folder, settings)
        return update, samples

    return SecureParticipant(folder, aggregation, session_name(run)).reply(content, node, update_of)


def client_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """The ClientApp that a SuperNode runs, with additional Flower mods around it.

    Args:
        mods: Flower mods, the outermost first.

    Returns:
        The app. Whatever fails in it, its reply is an error without arrays.

    >>> type(client_app()).__name__
    'ClientApp'
    """
    client = ClientApp()

    @client.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        try:
            content = reply_content(message.content, client_folder(context), context.run_id, context.node_id)
        except Exception as error:  # whatever fails, the reply is an error without arrays
            # The text may contain information about the data. It stays in the client's log, and the server
            # receives only the type of the error.
            print(f"refiner: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            reason = f"the client sent nothing ({type(error).__name__}; see the client's log)"
            return Message(Error(code=CLIENT_ERROR, reason=reason), reply_to=message)
        return Message(content, reply_to=message)

    return client


app = client_app()


def _derive_number(secret: bytes | None, purpose: str) -> int:
    """A number of 256 bits for one purpose, derived from the client's secret."""
    assert secret is not None
    return int.from_bytes(hashlib.sha256(f"refiner {purpose} ".encode() + secret).digest(), "big")
