"""Servers against the strategies of Flower whose names they have, driven by Flower itself."""

import inspect
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from refiner.federation import FedAdam, FedAvg, FedAvgM, Server
from refiner.federation.local import weighted_mean

ROUNDS, SIZE = 6, 50
SAMPLES = {3: 4, 11: 7}


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """Two nodes that move the weights they are given: by node, a move for each round."""

    def __init__(self, moves: dict[int, Tensor]) -> None:
        self.moves = moves
        self.rounds = 0

    def get_node_ids(self) -> list[int]:
        return list(self.moves)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = [self.reply(message) for message in messages]
        self.rounds += bool(replies)
        return replies

    def reply(self, asked: Message) -> Message:
        asked.metadata.__dict__["_message_id"] = "m"  # as Flower's own grids do
        node = asked.metadata.dst_node_id
        given = asked.content["arrays"]
        assert isinstance(given, ArrayRecord)
        new = given["w"].numpy() - self.moves[node][self.rounds].numpy()
        held = {
            "arrays": ArrayRecord({"w": Array(new)}),
            "metrics": MetricRecord({"num-examples": SAMPLES[node]}),
        }
        return Message(RecordDict(held), reply_to=asked)


def flowers(theirs: Any, moves: dict[int, Tensor], start: Tensor) -> Tensor:
    """Where a strategy of Flower comes to."""
    grid: Any = Grid(moves)
    result = theirs.start(grid, ArrayRecord({"w": Array(start.numpy())}), num_rounds=ROUNDS)
    assert grid.rounds == ROUNDS
    return torch.from_numpy(result.arrays["w"].numpy())


def ours(server: Server, moves: dict[int, Tensor], start: Tensor) -> Tensor:
    """Where a server of the library comes to, with the same moves."""
    values, state = start, server.init(start)
    for round in range(ROUNDS):
        move = weighted_mean(torch.stack([moves[node][round] for node in SAMPLES]), list(SAMPLES.values()))
        values, state = server.step(values, move, state)
    return values


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6], ids=["large", "FedSGD", "tiny"])
@pytest.mark.parametrize(
    ("theirs", "server", "settings"),
    [
        (strategy.FedAvg, FedAvg, {}),
        (strategy.FedAvgM, FedAvgM, {"server_learning_rate": 0.5, "server_momentum": 0.9}),
        (strategy.FedAvgM, FedAvgM, {"server_momentum": 0.0}),
        (strategy.FedAdam, FedAdam, {}),
        (strategy.FedAdam, FedAdam, {"eta": 0.02, "beta_1": 0.5, "beta_2": 0.9, "tau": 1e-2}),
    ],
)
def test_as_flowers_own(theirs: Any, server: Any, settings: dict[str, float], scale: float) -> None:
    # In float64: the difference of two weights in float32 is off by 1e-7, and FedAdam makes 1e-5 of that.
    start = torch.randn(SIZE, dtype=torch.float64)
    moves = {node: scale * torch.randn(ROUNDS, SIZE, dtype=torch.float64) for node in SAMPLES}
    expected = flowers(theirs(fraction_evaluate=0.0, **settings), moves, start)
    found = ours(server(**settings), moves, start)
    assert float((expected - start).abs().max()) > 0.1 * scale  # it went somewhere
    assert float((found - expected).abs().max()) < 1e-6 * scale


@pytest.mark.parametrize(("theirs", "server"), [(strategy.FedAvgM, FedAvgM), (strategy.FedAdam, FedAdam)])
def test_defaults_are_flowers(theirs: Any, server: Any) -> None:
    """But for the momentum, where Flower's default is no momentum."""
    defaults = {name: held.default for name, held in inspect.signature(theirs).parameters.items()}
    own = {name: held.default for name, held in inspect.signature(server).parameters.items()}
    assert own.keys() <= defaults.keys()
    assert {name for name in own if own[name] != defaults[name]} <= {"server_momentum"}
