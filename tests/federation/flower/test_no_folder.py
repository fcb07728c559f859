"""Clients without a place for their secret: an instruction, and no run that succeeds without weights."""

import importlib
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file

from refiner.defenses import Pruning
from refiner.errors import ProtectionError
from refiner.federation.flower import defense_mod
from refiner.federation.flower.client import app as library_client

ADOPT = Path(__file__).parents[3] / "examples" / "flower" / "adopt"
INSTRUCTION = (
    "folder: not in this node's configuration, so there is no place for its secret; start the SuperNode "
    "with --node-config 'folder=\"/private/client\"'"
)


class Grid:
    """Two nodes in this process that run a ClientApp; what it raises becomes an error reply, as in Flower."""

    def __init__(self, client: ClientApp, folders: list[Path | None]) -> None:
        self.client, self.folders = client, folders
        self.errors: list[str] = []

    def get_node_ids(self) -> list[int]:
        return list(range(1, len(self.folders) + 1))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return [self.reply(message) for message in messages]

    def reply(self, message: Message) -> Message:
        node = message.metadata.dst_node_id
        folder = self.folders[node - 1]
        config: dict[str, Any] = {} if folder is None else {"folder": str(folder)}
        message.metadata.__dict__["_message_id"] = f"m{node}"
        try:
            reply = self.client(message, Context(1, node, config, RecordDict(), {}))
        except Exception as error:
            reply = Message(Error(code=3, reason=str(error)), reply_to=message)
        if reply.has_error():
            self.errors.append(reply.error.reason)
        return reply


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The modules of the example; Flower's identity of a task is that of a run."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.syspath_prepend(str(ADOPT))
    names = ("model", "server", "protected", "plain")
    for name in names:
        sys.modules.pop(name, None)
    yield SimpleNamespace(**{name: importlib.import_module(name) for name in names})
    for name in names:
        sys.modules.pop(name, None)


def run_server(example: Any, grid: Grid, out: Path) -> None:
    context = Context(1, 0, {}, RecordDict(), {"rounds": 1, "out": str(out)})
    example.server.main(grid, context)


def test_a_client_without_a_folder_says_what_to_do_and_no_model_is_written(
    example: Any, tmp_path: Path
) -> None:
    grid, out = Grid(example.protected.app, [None, None]), tmp_path / "weights.safetensors"
    with pytest.raises(
        ProtectionError, match=r"^no round had a valid reply, so there are no trained weights"
    ):
        run_server(example, grid, out)
    assert grid.errors == [INSTRUCTION] * 2
    assert not out.exists()


def test_clients_that_reply_leave_a_model(example: Any, tmp_path: Path) -> None:
    grid, out = Grid(example.plain.app, [None, None]), tmp_path / "weights.safetensors"
    run_server(example, grid, out)
    assert grid.errors == []
    assert len(load_file(out)) == 6


def test_a_mod_that_protects_no_reply_leaves_no_model(example: Any, tmp_path: Path) -> None:
    app = ClientApp(mods=[defense_mod(Pruning(rate=0.5))])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(RecordDict(), reply_to=message)

    grid, out = Grid(app, [None, None]), tmp_path / "weights.safetensors"
    with pytest.raises(ProtectionError, match="no trained weights"):
        run_server(example, grid, out)
    assert len(grid.errors) == 2 and all("no arrays were sent" in reason for reason in grid.errors)
    assert not out.exists()


def test_the_librarys_client_sends_the_instruction_and_never_a_path(example: Any, tmp_path: Path) -> None:
    grid = Grid(library_client, [None, tmp_path / "absent"])
    messages = [Message(RecordDict(), node, "train") for node in grid.get_node_ids()]
    grid.send_and_receive(messages)
    assert grid.errors == [INSTRUCTION, "the client sent nothing; see the client's log"]
