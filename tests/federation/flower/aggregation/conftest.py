"""Both sides of secure aggregation over Flower in one process: the apps, without the transport."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

if find_spec("flwr") is None:  # the conftest of the parent folder raises where this is an error
    collect_ignore_glob = ["test_*.py"]
else:
    from flwr.app import Context, Message, RecordDict
    from flwr.app.message import make_message
    from flwr.app.metadata import Metadata

    from refiner import Task
    from refiner.core.flat_parameters import get_parameters
    from refiner.federation import Experiment, FederatedSettings
    from refiner.federation.flower.aggregation import Secure, make_aggregation, session_name
    from refiner.federation.flower.app_files import write_clients, write_identities
    from refiner.federation.flower.client import client_app, make_update
    from refiner.federation.flower.client_settings import ClientSettings
    from refiner.federation.flower.identities import read_identities
    from refiner.federation.flower.messages import TrainInstructions
    from refiner.federation.flower.secure_messages import StepRequest
    from refiner.federation.flower.secure_server import SecureRounds
    from refiner.federation.local import weighted_mean
    from refiner.models import MLP, MODELS

    Change = Callable[[str, int, RecordDict], RecordDict | None]

RUN = 77


@cache
def small_task() -> Task:
    """A model of the plug-in `small`: a client validates it in a sixth of the time of LeNet."""
    torch.manual_seed(0)
    return Task(MLP(hidden=8), example=torch.zeros(1, 3, 32, 32))


@dataclass
class Federation:
    """Clients in private folders, as nodes 1001, 1002, ..., and the server's side of a round."""

    folders: list[Path]
    settings: Secure
    sent: list[tuple[str, int, RecordDict]] = field(default_factory=list)
    """Everything that the server has sent: step, node, content."""
    received: dict[tuple[str, int], RecordDict] = field(default_factory=dict)
    """The content of the replies, by step and node."""
    change: Change = lambda step, node, content: content
    """Changes a message on its way to a node; None if the node is gone."""

    def __post_init__(self) -> None:
        self.task = small_task()
        self.parameters = get_parameters(self.task)
        self.server = SecureRounds(self.settings, self.public_keys, session_name(RUN), self.exchange)
        self.rejected: dict[int, str] = {}

    @property
    def size(self) -> int:
        return self.parameters.numel()

    @property
    def public_keys(self) -> dict[int, bytes]:
        return read_identities(self.folders[0])

    def folder(self, node: int) -> Path:
        return self.folders[node - 1001]

    def instructions(self, round: int = 1, lr: float = 0.1, scale: float = 1.0) -> RecordDict:
        """Training instructions with `scale` times the model's parameters."""
        instructions = TrainInstructions(round, "small", 10, 64, 1, lr)
        return instructions.content(scale * self.parameters, self.task.shapes)

    def exchange(
        self, round: int, contents: Mapping[int, RecordDict]
    ) -> tuple[dict[int, RecordDict], dict[int, str]]:
        replies, missing = {}, {}
        for node, content in contents.items():
            step = StepRequest.read(content).step
            self.sent.append((step, node, content))
            changed = self.change(step, node, content)
            reply = None if changed is None else self.send(node, changed)
            if reply is None:
                missing[node] = "no reply"
            elif reply.has_error():
                missing[node] = reply.error.reason
            else:
                replies[node] = self.received[step, node] = reply.content
        return replies, missing

    def mean(self, round: int = 1, nodes: list[int] | None = None) -> Any:
        nodes = nodes or [1001 + position for position in range(len(self.folders))]
        self.rejected = {}
        return self.server.mean(round, nodes, self.instructions(round), self.size, self.rejected)

    def unmasked_update(self, folder: Path, round: int = 1) -> tuple[Tensor, int]:
        """The update that the client of `folder` would send without masks, and its number of samples."""
        content = self.instructions(round)
        instructions, settings = TrainInstructions.read(content), ClientSettings.read(folder)
        update, _, samples = make_update(instructions, content, folder, settings, run=0)
        return update, samples

    def plain_mean(self, folders: list[Path], round: int = 1) -> Tensor:
        updates, samples = zip(*(self.unmasked_update(folder, round) for folder in folders), strict=True)
        return weighted_mean(torch.stack(updates), samples)

    def send_again(self, step: str, node: int) -> Message:
        """The reply to the same message, sent once more by a malicious server."""
        return self.send(node, next(c for s, n, c in self.sent if (s, n) == (step, node)))

    def send(self, node: int, content: RecordDict, run: int = RUN) -> Message:
        """The reply of a node's app."""
        metadata = Metadata(run, "request", 1, node, "", "1", 0.0, 3600.0, "train")
        context = Context(run, node, {"folder": str(self.folder(node))}, RecordDict(), {})
        return client_app()(make_message(metadata, content), context)

    def drop_from(self, first_step: str, dropped: int) -> None:
        """Make a node drop out at a step."""
        gone: set[int] = set()

        def change(step: str, node: int, content: RecordDict) -> RecordDict | None:
            if step == first_step and node == dropped:
                gone.add(node)
            return None if node in gone else content

        self.change = change


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Federation]:
    """`federation(3, aggregation="secure")`: this many clients with their keys, and a server."""
    monkeypatch.setitem(MODELS.plugins(), "small", partial(MLP, hidden=8))

    def make(
        clients: int = 3, aggregation: str = "secure", defense: str = "none", partition: str = "iid"
    ) -> Federation:
        folders = [tmp_path / f"client-{client}" for client in range(clients)]
        experiment = Experiment(
            data="sample",
            defense=defense,
            partition=partition,
            training=FederatedSettings(clients=clients, seed=3),
        )
        write_clients(experiment, folders, aggregation=aggregation)
        write_identities(folders, tmp_path / "server")
        settings = make_aggregation(aggregation)
        assert isinstance(settings, Secure)
        return Federation(folders, settings)

    return make
