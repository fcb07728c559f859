"""The client of a training, as a Flower app: its own data, its own defence, and only an `Update` leaves.

What it protects, and how, stands in `client.json` in its own folder. A server says which round it is and
gives the model; no message of a server can choose a seed, a defence or the data.
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
from refiner.data.classes import checked_classes
from refiner.data.partition import make_partition
from refiner.defenses import make_defense
from refiner.errors import DataError
from refiner.federation.flower.aggregation import Secure, make_aggregation, session_of
from refiner.federation.flower.client_secrets import folder_of, remember, remembered, secret_in
from refiner.federation.flower.messages import Order, Shapes, answer, from_arrays
from refiner.federation.flower.own_data import client_data
from refiner.federation.flower.secure_client import Member
from refiner.federation.local import LocalClients, get_parameters, set_parameters
from refiner.federation.schedule import Schedule, derived
from refiner.federation.settings import Training
from refiner.models import build

REFUSED = 100
"""The code of an error reply by a client that could not, or would not, protect its data."""


@dataclass(frozen=True)
class ClientSettings:
    """A client's own choices, `client.json` in its folder.

    >>> ClientSettings(data="sample", defense="refiner").client
    0
    >>> ClientSettings(data="sample", defense="refiner", clients=2, client=2)
    Traceback (most recent call last):
    refiner.errors.SettingError: client = 2: expected an integer in [0, 1]
    """

    data: str
    defense: str
    """There is no default: a client without a defence says so with "none"."""
    size: int | None = None
    """The side to which images of one's own are brought: that of the server's."""
    classes: Sequence[str] | None = None
    """The names of the server's classes in its order, by which the folders of `folder:PATH` are numbered."""
    clients: int = 1
    """For a study that parts one source among several; a client of its own has all of its data."""
    client: int = 0
    partition: str = "iid"
    seed: int | None = None
    """A study's, of parts, batches and noise. A client of its own has none: all come from its secret, or from
    the operating system."""
    device: str = "cpu"
    aggregation: str = "plain"
    """With "secure" this client takes part in sums under masks, and answers no order for its move alone."""

    def __post_init__(self) -> None:
        for name in ("data", "defense", "partition"):
            if not isinstance(getattr(self, name), str):
                raise checks.wrong(name, getattr(self, name), "text")
        if self.size is not None:
            checks.integer("size", self.size, 1)
        if self.classes is not None:
            checked_classes(self.classes)
        checks.integer("clients", self.clients, 1)
        checks.integer("client", self.client, 0, self.clients - 1)
        if self.seed is not None:
            checks.integer("seed", self.seed, 0, 2**63 - 1)
        checks.choice("device", self.device, ("cpu", "cuda"))
        make_aggregation(self.aggregation)

    @classmethod
    def read(cls, folder: Path) -> Self:
        """The settings in a client's folder."""
        path = folder / "client.json"
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise DataError(f"{path}: expected a client's settings as JSON ({reason[:120]})") from error


def protected_move(order: Order, content: RecordDict, folder: Path) -> RecordDict:
    """What a client answers: its move, made of its defence's updates. If one fails, it raises."""
    return answer(*make_move(order, content, folder, ClientSettings.read(folder)))


def make_move(
    order: Order, content: RecordDict, folder: Path, settings: ClientSettings
) -> tuple[Tensor, Shapes, int]:
    """A client's move `[N]`, the shapes of its parts, and of how many samples it is."""
    data = client_data(
        settings.data,
        order.classes,
        study=settings.clients > 1 or settings.seed is not None,
        size=settings.size,
        classes=settings.classes,
    )
    parts = make_partition(settings.partition, data.labels, settings.clients, settings.seed or 0)
    secret = secret_in(folder) if settings.seed is None else None
    model = build(order.model, classes=order.classes, input_shape=tuple(data.images.shape[1:]))
    device = torch.device(settings.device)
    task = Task(model.to(device), example=torch.zeros(1, *data.images.shape[1:], device=device))
    set_parameters(task, from_arrays(content, task.shapes, get_parameters(task)))
    # From all of the secret's bits, not from a seed's 63.
    key = derived(settings.seed, "secret") if settings.seed is not None else _number(secret, "defence")
    defense = make_defense(settings.defense).for_training(len(data.labels), key)
    training = Training(
        rounds=order.round,
        clients=settings.clients,
        batch=order.batch,
        local_steps=order.local_steps,
        lr=order.lr,
        seed=settings.seed if settings.seed is not None else _number(secret, "batches") >> 193,
    )
    schedule = Schedule(parts, training)
    clients = LocalClients(task, data.images, data.labels, schedule, defense, settings.seed)
    # A new training starts as it would on one machine: with nothing remembered.
    if order.round > 1:
        clients.restore(remembered(folder))
    move: Tensor = clients.move(settings.client, order.round)
    remember(folder, clients.state())
    return move, task.shapes, len(schedule.batch(settings.client, order.round))


def answer_to(content: RecordDict, folder: Path, run: int, node: int) -> RecordDict:
    """What a client answers to an order. How it answers is its own choice, and not the order's."""
    settings = ClientSettings.read(folder)
    way = make_aggregation(settings.aggregation)
    if not isinstance(way, Secure):
        return answer(*make_move(Order.read(content), content, folder, settings))

    def move(round: int) -> tuple[Tensor, int]:
        order = Order.read(content)
        if order.round != round:
            raise DataError(f"order: of round {order.round}, asked for in round {round}")
        made, _, samples = make_move(order, content, folder, settings)
        return made, samples

    return Member(folder, way, session_of(run)).answer(content, node, move)


def client_app(mods: Sequence[Mod] = ()) -> ClientApp:
    """The app that a SuperNode runs, with further mods around it.

    >>> type(client_app()).__name__
    'ClientApp'
    """
    made = ClientApp()

    @made.train(mods=list(mods))
    def train(message: Message, context: Context) -> Message:
        try:
            content = answer_to(message.content, folder_of(context), context.run_id, context.node_id)
        except Exception as error:  # whatever it is: the reply is an error, and nothing else leaves
            # The text may tell of the data: it stays here, and the server is told of the kind alone.
            print(f"refiner: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            reason = f"the client sent nothing ({type(error).__name__}; its own log says why)"
            return Message(Error(code=REFUSED, reason=reason), reply_to=message)
        return Message(content, reply_to=message)

    return made


app = client_app()


def _number(secret: bytes | None, purpose: str) -> int:
    """A number of 256 bits for one purpose."""
    assert secret is not None
    return int.from_bytes(hashlib.sha256(f"refiner {purpose} ".encode() + secret).digest(), "big")
