"""Servers against the Flower strategies of the same names, run by Flower itself."""

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
# Number of samples of each node.
SAMPLES = {3: 4, 11: 7}


@pytest.fixture(autouse=True)
def flower_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """Two nodes that subtract given updates from the weights they receive, one for each round."""

    def __init__(self, updates: dict[int, Tensor]) -> None:
        self.updates = updates
        self.rounds = 0

    def get_node_ids(self) -> list[int]:
        return list(self.updates)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        replies = [self.reply(message) for message in messages]
        self.rounds += bool(replies)
        return replies

    def reply(self, request: Message) -> Message:
        request.metadata.__dict__["_message_id"] = "m"  # as Flower's own grids do
        node = request.metadata.dst_node_id
        arrays = request.content["arrays"]
        assert isinstance(arrays, ArrayRecord)
        weights = arrays["w"].numpy() - self.updates[node][self.rounds].numpy()
        content = {
            "arrays": ArrayRecord({"w": Array(weights)}),
            "metrics": MetricRecord({"num-examples": SAMPLES[node]}),
        }
        return Message(RecordDict(content), reply_to=request)


def weights_of_flower(flower_strategy: Any, updates: dict[int, Tensor], start: Tensor) -> Tensor:
    """The weights that a Flower strategy ends with."""
    grid: Any = Grid(updates)
    result = flower_strategy.start(grid, ArrayRecord({"w": Array(start.numpy())}), num_rounds=ROUNDS)
    assert grid.rounds == ROUNDS
    return torch.from_numpy(result.arrays["w"].numpy())


def weights_of_server(server: Server, updates: dict[int, Tensor], start: Tensor) -> Tensor:
    """The weights that a server of the library ends with, for the same updates."""
    weights, state = start, server.init(start)
    for round in range(ROUNDS):
        of_round = torch.stack([updates[node][round] for node in SAMPLES])
        update = weighted_mean(of_round, list(SAMPLES.values()))
        weights, state = server.step(weights, update, state)
    return weights


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e-6], ids=["large", "FedSGD", "tiny"])
@pytest.mark.parametrize(
    ("flower_strategy", "server", "settings"),
    [
        (strategy.FedAvg, FedAvg, {}),
        (strategy.FedAvgM, FedAvgM, {"server_learning_rate": 0.5, "server_momentum": 0.9}),
        (strategy.FedAvgM, FedAvgM, {"server_momentum": 0.0}),
        (strategy.FedAdam, FedAdam, {}),
        (strategy.FedAdam, FedAdam, {"eta": 0.02, "beta_1": 0.5, "beta_2": 0.9, "tau": 1e-2}),
    ],
)
def test_the_weights_equal_those_of_flowers_strategy(
    flower_strategy: Any, server: Any, settings: dict[str, float], scale: float
) -> None:
    # In float64: the difference of two float32 weights has an error of 1e-7, which FedAdam amplifies to 1e-5.
    start = torch.randn(SIZE, dtype=torch.float64)
    updates = {node: scale * torch.randn(ROUNDS, SIZE, dtype=torch.float64) for node in SAMPLES}
    expected = weights_of_flower(flower_strategy(fraction_evaluate=0.0, **settings), updates, start)
    weights = weights_of_server(server(**settings), updates, start)
    assert float((expected - start).abs().max()) > 0.1 * scale  # the weights have changed
    assert float((weights - expected).abs().max()) < 1e-6 * scale


@pytest.mark.parametrize(
    ("flower_strategy", "server"), [(strategy.FedAvgM, FedAvgM), (strategy.FedAdam, FedAdam)]
)
def test_the_defaults_are_flowers(flower_strategy: Any, server: Any) -> None:
    """Except for the momentum, as Flower's default is none."""
    flower_defaults = {name: p.default for name, p in inspect.signature(flower_strategy).parameters.items()}
    defaults = {name: p.default for name, p in inspect.signature(server).parameters.items()}
    assert defaults.keys() <= flower_defaults.keys()
    different = {name for name in defaults if defaults[name] != flower_defaults[name]}
    assert different <= {"server_momentum"}
