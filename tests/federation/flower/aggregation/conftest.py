"""Both sides of secure aggregation over Flower in one process: the apps, without the transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

if find_spec("flwr") is None:  # the folder above says so where that is an error
    collect_ignore_glob = ["test_*.py"]
else:
    from flwr.app import Context, Message, RecordDict
    from flwr.app.message import make_message
    from flwr.app.metadata import Metadata

    from refiner import Task
    from refiner.federation import Experiment, Training
    from refiner.federation.flower.aggregation import (
        Ask,
        Secure,
        make_aggregation,
        read_identities,
        session_of,
    )
    from refiner.federation.flower.client import ClientSettings, client_app, make_move
    from refiner.federation.flower.messages import Order
    from refiner.federation.flower.secure_server import SecureRounds
    from refiner.federation.flower.study import write_clients, write_identities
    from refiner.federation.local import get_parameters, weighted_mean
    from refiner.models import LeNet

    Change = Callable[[str, int, RecordDict], RecordDict | None]

RUN = 77


@dataclass
class Federation:
    """Clients in folders of their own, as nodes 1001, 1002, …, and the server's side of a round."""

    homes: list[Path]
    settings: Secure
    sent: list[tuple[str, int, RecordDict]] = field(default_factory=list)
    """Everything that the server has sent: step, node, content."""
    got: dict[tuple[str, int], RecordDict] = field(default_factory=dict)
    """What came of it, by step and node."""
    change: Change = lambda step, node, content: content
    """What becomes of a message on its way to a node; None: the node is gone."""

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.task = Task(LeNet(), example=torch.zeros(1, 3, 32, 32))
        self.values = get_parameters(self.task)
        self.server = SecureRounds(self.settings, self.known, session_of(RUN), self.exchange)
        self.rejected: dict[int, str] = {}

    @property
    def known(self) -> dict[int, bytes]:
        return read_identities(self.homes[0])

    def folder(self, node: int) -> Path:
        return self.homes[node - 1001]

    def order(self, round: int = 1, lr: float = 0.1, scale: float = 1.0) -> RecordDict:
        """What is asked for; the weights are `scale` times the model's."""
        return Order(round, "lenet", 10, 64, 1, lr).content(scale * self.values, self.task.shapes)

    def exchange(
        self, round: int, contents: Mapping[int, RecordDict]
    ) -> tuple[dict[int, RecordDict], dict[int, str]]:
        found, missing = {}, {}
        for node, content in contents.items():
            step = Ask.read(content).step
            self.sent.append((step, node, content))
            changed = self.change(step, node, content)
            reply = None if changed is None else self.ask(node, changed)
            if reply is None:
                missing[node] = "no answer"
            elif reply.has_error():
                missing[node] = reply.error.reason
            else:
                found[node] = self.got[step, node] = reply.content
        return found, missing

    def mean(self, round: int = 1, nodes: list[int] | None = None) -> Any:
        nodes = nodes or [1001 + place for place in range(len(self.homes))]
        self.rejected = {}
        return self.server.mean(round, nodes, self.order(round), self.values.numel(), self.rejected)

    def move(self, home: Path, round: int = 1) -> tuple[Tensor, int]:
        """What the client of `home` would upload without masks."""
        content = self.order(round)
        made, _, samples = make_move(Order.read(content), content, home, ClientSettings.read(home))
        return made, samples

    def plain_mean(self, homes: list[Path], round: int = 1) -> Tensor:
        moves, sizes = zip(*(self.move(home, round) for home in homes), strict=True)
        return weighted_mean(torch.stack(moves), sizes)

    def again(self, step: str, node: int) -> Message:
        """The same message once more, from a server that means ill."""
        return self.ask(node, next(c for s, n, c in self.sent if (s, n) == (step, node)))

    def ask(self, node: int, content: RecordDict, run: int = RUN) -> Message:
        """What the app of a node answers."""
        about = Metadata(run, "asked", 1, node, "", "1", 0.0, 3600.0, "train")
        context = Context(run, node, {"folder": str(self.folder(node))}, RecordDict(), {})
        return client_app()(make_message(about, content), context)

    def lose(self, at: str, lost: int) -> None:
        """Have a node gone from a step on."""
        gone: set[int] = set()

        def change(step: str, node: int, content: RecordDict) -> RecordDict | None:
            gone.update({node} & {lost} if step == at else ())
            return None if node in gone else content

        self.change = change


@pytest.fixture
def federation(tmp_path: Path) -> Callable[..., Federation]:
    """`federation(3, aggregation="secure")`: so many clients with their keys, and a server."""

    def make(
        clients: int = 3, aggregation: str = "secure", defense: str = "none", partition: str = "iid"
    ) -> Federation:
        homes = [tmp_path / f"client-{client}" for client in range(clients)]
        training = Training(clients=clients, seed=3)
        experiment = Experiment(data="sample", defense=defense, partition=partition, training=training)
        write_clients(experiment, homes, aggregation=aggregation)
        write_identities(homes, tmp_path / "server")
        settings = make_aggregation(aggregation)
        assert isinstance(settings, Secure)
        return Federation(homes, settings)

    return make
