"""The strategy with real messages, in one process: its requests, its validation of replies, and its users."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.supercore.task_identity import TaskIdentity
from safetensors.torch import load_file
from torch import Tensor

from refiner import Task
from refiner.core.flat_parameters import get_parameters, set_parameters
from refiner.errors import DataError, ProtectionError, SettingError
from refiner.federation import Experiment, FederatedSettings, run_experiment
from refiner.federation.flower import node_tracker, server
from refiner.federation.flower.app_files import write_clients
from refiner.federation.flower.client import client_app
from refiner.federation.flower.messages import TrainInstructions, to_arrays, update_content
from refiner.federation.flower.node_tracker import NodeTracker
from refiner.federation.flower.run_config import RunConfig
from refiner.federation.flower.server import RemoteClients
from refiner.federation.flower.strategy import MeanUpdate
from refiner.federation.local import weighted_mean
from refiner.federation.schedule import derive_seed
from refiner.models import LeNet, make_model

RUN = 77
SHAPES = {"weight": torch.Size([2, 3]), "bias": torch.Size([2])}
PARAMETERS = torch.linspace(-1, 1, 8)
SETTINGS = FederatedSettings(clients=3, batch=8, lr=0.1)
# By node; of different magnitudes, so that the bits of their sum depend on the order of summation.
SCALES = {3: 1000.3, 11: 0.7, 20: -777.7}
SAMPLES = {3: 4, 11: 7, 20: 2}

Reply = Callable[[Message], Message | None]


@pytest.fixture(autouse=True)
def flower_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, RUN)
    for module in (node_tracker, server):
        monkeypatch.setattr(module, "_POLL_SECONDS", 0.01)


class Grid:
    """Nodes that reply at once, or when the test makes them."""

    def __init__(self, nodes: dict[int, Reply]) -> None:
        self.nodes = nodes
        self.replies: dict[str, Message] = {}
        self.pushed: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return list(reversed(self.nodes))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"m{len(self.pushed)}")
            message.metadata.__dict__["_message_id"] = ids[-1]  # as Flower's own grids do
            self.pushed.append(message)
            reply = self.nodes[message.metadata.dst_node_id](message)
            if reply is not None:
                self.replies[ids[-1]] = reply
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(message_id) for message_id in ids if message_id in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def update_of(node: int) -> Tensor:
    return SCALES[node] * torch.linspace(0.1, 1, 8)


def mean_of(*nodes: int) -> Tensor:
    updates = torch.stack([update_of(node) for node in nodes])
    return weighted_mean(updates, [SAMPLES[node] for node in nodes])


def valid(request: Message) -> Message:
    node = request.metadata.dst_node_id
    return Message(update_content(update_of(node), SHAPES, SAMPLES[node]), reply_to=request)


def silent(request: Message) -> None:
    return None


def changed(change: Callable[[RecordDict], None]) -> Reply:
    """A node whose reply is changed before it is sent."""

    def node(request: Message) -> Message:
        reply = valid(request)
        change(reply.content)
        return reply

    return node


def replies_of(grid: Any, strategy: MeanUpdate, round: int = 1) -> list[Message]:
    """The replies of a round."""
    requests = strategy.configure_train(round, to_arrays(PARAMETERS, SHAPES), ConfigRecord(), grid)
    replies: list[Message] = grid.send_and_receive(requests)
    return replies


def strategy_for(**changes: Any) -> MeanUpdate:
    defaults = {
        "model": "lenet",
        "classes": 10,
        "settings": SETTINGS,
        "initial_nodes": 1,
        "nodes": NodeTracker(0.05),
        "max_norm": 1e9,
    }
    return MeanUpdate(**{**defaults, **changes})


def flat(arrays: ArrayRecord | None) -> Tensor:
    assert arrays is not None
    return torch.cat([torch.from_numpy(arrays[name].numpy()).flatten() for name in SHAPES])


# Requests ---------------------------------------------------------------------------------------------------


def test_every_node_is_sent_the_instructions_and_the_parameters() -> None:
    grid: Any = Grid(dict.fromkeys(SCALES, valid))
    strategy = strategy_for(message_ttl=60.0)
    replies_of(grid, strategy, 4)
    assert [request.metadata.dst_node_id for request in grid.pushed] == [3, 11, 20]
    instructions = TrainInstructions(4, "lenet", 10, batch=8, local_steps=1, lr=0.1)
    for request in grid.pushed:
        assert TrainInstructions.read(request.content) == instructions
        metadata = request.metadata
        assert (metadata.group_id, metadata.ttl, metadata.message_type) == ("4", 60, "train")
        assert torch.equal(flat(request.content.array_records["arrays"]), PARAMETERS)


def test_two_of_three_nodes_are_sampled_in_every_round() -> None:
    grid: Any = Grid(dict.fromkeys(SCALES, valid))
    strategy, rounds = strategy_for(settings=replace(SETTINGS, sampled=2)), []
    for round in range(1, 9):
        requests = strategy.configure_train(round, to_arrays(PARAMETERS, SHAPES), ConfigRecord(), grid)
        rounds.append([request.metadata.dst_node_id for request in requests])
    assert all(len(nodes) == 2 for nodes in rounds) and len({tuple(nodes) for nodes in rounds}) > 1


def test_a_config_an_invalid_model_or_too_few_nodes_raise_before_anything_is_sent() -> None:
    grid: Any = Grid({3: valid})
    strategy, arrays = strategy_for(), to_arrays(PARAMETERS, SHAPES)
    with pytest.raises(SettingError, match=r"^train_config = {'seed': 1}: expected none"):
        strategy.configure_train(1, arrays, ConfigRecord({"seed": 1}), grid)
    with pytest.raises(DataError, match=r"^initial_arrays: empty"):
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    with pytest.raises(
        DataError, match=r"^round 2: the model can't be sent: weight: contains NaN or infinity$"
    ):
        strategy.configure_train(2, to_arrays(PARAMETERS * np.nan, SHAPES), ConfigRecord(), grid)
    arrays["counter"] = Array(np.array(3))
    with pytest.raises(DataError, match=r"^round 1: the model can't be sent: counter: 'int64' of"):
        strategy.configure_train(1, arrays, ConfigRecord(), grid)
    waiting = strategy_for(initial_nodes=0)
    with pytest.raises(DataError, match=r"^nodes: 1 connected and free after 0.05 s, expected 3$"):
        waiting.configure_train(1, to_arrays(PARAMETERS, SHAPES), ConfigRecord(), grid)
    assert grid.pushed == []


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"min_train_nodes": 4}, r"min_train_nodes = 4: expected an integer in \[1, 3\]"),
        ({"min_train_nodes": 0}, r"min_train_nodes = 0: expected an integer in \[1, 3\]"),
        ({"initial_nodes": 4}, r"initial_nodes = 4: expected an integer in \[0, 3\]"),
        ({"message_ttl": 0.0}, "message_ttl = 0.0: expected a number in"),
        ({"classes": 0}, "classes = 0: expected an integer ≥ 1"),
    ],
)
def test_a_setting_out_of_range_raises(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=f"^{message}"):
        strategy_for(**setting)


# Replies ----------------------------------------------------------------------------------------------------


def test_the_mean_is_weighted_by_samples_and_independent_of_the_order_of_arrival() -> None:
    grid, strategy = Grid(dict.fromkeys(SCALES, valid)), strategy_for()
    replies = replies_of(grid, strategy)
    mean = mean_of(3, 11, 20)
    # Controls: another order of summation changes bits, and an unweighted mean is far away.
    assert not torch.equal(mean_of(3, 20, 11), mean)
    assert float((torch.stack([update_of(node) for node in SCALES]).mean(0) - mean).abs().min()) > 1
    for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0)):
        arrived = [replies[position] for position in order]
        result = strategy.collect(arrived)
        assert result.update is not None and torch.equal(result.update, mean)
        arrays, metrics = strategy.aggregate_train(1, arrived)
        assert torch.equal(flat(arrays), PARAMETERS - mean)
        assert list(arrays) == list(SHAPES) and dict(metrics) == {"asked": 3, "used": 3}


def with_arrays(**arrays: Any) -> Reply:
    return changed(lambda content: content.array_records["arrays"].update(arrays))


def with_count(count: int) -> Reply:
    return changed(lambda content: content.metric_records["metrics"].update({"num-examples": count}))


def without(key: str, name: str | None = None) -> Reply:
    """A node whose reply lacks a record, or one of its arrays."""

    def remove(content: RecordDict) -> None:
        if name is None:
            del content[key]
        else:
            del content.array_records[key][name]

    return changed(remove)


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        (lambda request: Message(Error(100, "no\ndata"), reply_to=request), "error 100: no data"),
        (with_arrays(bias=Array(np.array([0, np.nan], np.float32))), "bias: contains NaN or infinity"),
        (with_arrays(bias=Array(np.zeros(3, np.float32))), "bias: float32 [3], expected float32 [2]"),
        (with_arrays(bias=Array(np.zeros(2))), "bias: 'float64' of 144 bytes, expected float32 [2]"),
        (with_arrays(more=Array(np.zeros(2, np.float32))), "'more': not a parameter"),
        (without("arrays", "bias"), "bias: missing"),
        (without("arrays"), "arrays: missing"),
        (
            with_count(9),
            "num-examples = 9: expected an integer in [1, 8]",
        ),
        (
            without("metrics"),
            "num-examples = None: expected an integer in [1, 8]",
        ),
        (silent, "no reply in time"),
    ],
)
def test_an_invalid_reply_is_left_out_and_named(node: Reply, reason: str) -> None:
    strategy = strategy_for(min_train_nodes=2)
    replies = replies_of(Grid({3: valid, 11: node, 20: valid}), strategy)
    result = strategy.collect(replies)
    assert result.rejected == {11: reason} and (result.requested, result.used) == (3, 2)
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert torch.equal(flat(arrays), PARAMETERS - mean_of(3, 20))
    assert dict(metrics) == {"asked": 3, "used": 2}
    strict = strategy_for(min_train_nodes=3)
    replies = replies_of(Grid({3: valid, 11: node, 20: valid}), strict)
    with pytest.raises(ProtectionError) as caught:
        strict.aggregate_train(1, replies)
    failure = "2 of 3 nodes sent a valid reply, at least 3 are needed"
    assert str(caught.value) == f"round 1: {failure} (node 11: {reason})"


def test_all_nodes_that_were_left_out_are_named_in_order() -> None:
    strategy = strategy_for(min_train_nodes=2)
    replies = replies_of(Grid({3: without("metrics"), 11: valid, 20: without("arrays")}), strategy)
    reasons = r"\(node 3: num-examples = None: [^;]*; node 20: arrays: missing\)$"
    with pytest.raises(ProtectionError, match=rf"^round 1: 1 of 3 nodes sent a valid reply.* {reasons}"):
        strategy.aggregate_train(1, replies[::-1])


def test_a_node_cannot_reply_twice_or_for_another() -> None:
    strategy = strategy_for()
    replies = replies_of(Grid({3: valid, 11: valid, 20: silent}), strategy)
    expected = strategy.collect(replies).update
    content = update_content(update_of(20), SHAPES, 4)
    metadata = Metadata(RUN, "", 20, RUN, replies[0].metadata.reply_to_message_id, "1", 0.0, 60.0, "train")
    second = make_message(metadata, content)
    unknown_request = Metadata(RUN, "", 20, RUN, "never sent", "1", 0.0, 60.0, "train")
    result = strategy.collect([*replies, second, make_message(unknown_request, content)])
    assert expected is not None and result.update is not None and torch.equal(result.update, expected)
    assert result.used == 2 and [*result.rejected] == [20]
    # The sender that a reply names does not count: it is the node that the request was sent to.
    invalid = make_message(second.metadata, RecordDict({"metrics": MetricRecord({"num-examples": 4})}))
    assert strategy.collect([invalid, replies[1]]).reasons["3"] == "arrays: missing"


@pytest.mark.hostile
def test_a_finite_update_that_would_overflow_is_clipped_and_counted() -> None:
    huge = with_arrays(bias=Array(np.full(2, 3e38, np.float32)))
    strategy = strategy_for(max_norm=2.0)
    result = strategy.collect(replies_of(Grid({3: huge, 11: valid, 20: huge}), strategy))
    assert result.clipped == [3, 20] and result.used == 3
    assert result.update is not None
    expected = (4 + 2) / 13 * 2.0 / 2**0.5 + 7 / 13 * update_of(11)[-2:]
    torch.testing.assert_close(result.update[-2:], expected)


@pytest.mark.hostile
@pytest.mark.parametrize("combine", ["median", "trimmed-mean:trim=0.34", "krum:hostile=1"])
def test_a_hostile_client_hardly_moves_a_robust_combination(combine: str) -> None:
    hostile = with_arrays(bias=Array(np.full(2, -3e38, np.float32)))
    strategy = strategy_for(combine=combine, max_norm=1e6)

    def like_11(request: Message) -> Message:
        return Message(update_content(update_of(11), SHAPES, 7), reply_to=request)

    result = strategy.collect(replies_of(Grid({3: hostile, 11: like_11, 20: like_11}), strategy))
    assert result.update is not None
    torch.testing.assert_close(result.update, update_of(11))


def test_a_late_node_is_asked_again_once_its_late_reply_has_arrived() -> None:
    grid, strategy = Grid({3: valid, 11: silent, 20: valid}), strategy_for(initial_nodes=3)
    asked = []
    for round in (1, 2, 3):
        if round == 3:
            late = next(request for request in grid.pushed if request.metadata.dst_node_id == 11)
            grid.replies[late.metadata.message_id] = valid(late)
            grid.nodes[11] = valid
        before = len(grid.pushed)
        result = strategy.collect(replies_of(grid, strategy, round), deadline=45)
        asked.append([request.metadata.dst_node_id for request in grid.pushed[before:]])
        assert result.rejected == ({11: "no reply within 45 s"} if round == 1 else {})
        assert strategy.nodes.busy == (1 if round == 2 else 0)
    assert asked == [[3, 11, 20], [3, 20], [3, 11, 20]]


def test_nodes_are_not_asked_to_evaluate_and_the_summary_lists_the_settings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    strategy: Any = strategy_for(min_train_nodes=2)
    assert strategy.configure_evaluate(1, to_arrays(PARAMETERS, SHAPES), ConfigRecord(), Grid({})) == []
    assert strategy.aggregate_evaluate(1, []) is None
    with caplog.at_level("INFO", "flwr"):
        strategy.summary()
    instructions = "model lenet, classes 10, batch 8, local steps 1, lr 0.1"
    for text in (instructions, "3 of 3 take part", "2 or more"):
        assert text in caplog.text


# Users of the strategy --------------------------------------------------------------------------------------

EXPERIMENT = Experiment(
    data="sample",
    defense="pruning:rate=0.8",
    training=FederatedSettings(rounds=3, clients=2, batch=8, lr=0.1, seed=7),
)


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Grid]:
    """The library's client apps as nodes 1 and 2, with the folders of an experiment."""
    folders = [tmp_path / "one", tmp_path / "two"]
    write_clients(EXPERIMENT, folders)

    def node(folder: Path, number: int) -> Reply:
        context = Context(RUN, number, {"folder": str(folder)}, RecordDict(), {})
        return lambda request: client_app()(request, context)

    yield Grid({number: node(folder, number) for number, folder in enumerate(folders, start=1)})


def test_started_by_flower_it_reaches_the_weights_of_the_local_engine(clients: Any, tmp_path: Path) -> None:
    run_experiment(EXPERIMENT, tmp_path / "local")
    expected = load_file(tmp_path / "local" / "weights.safetensors")
    torch.manual_seed(derive_seed(7, "model"))
    initial = ArrayRecord(dict(make_model("lenet").named_parameters()))
    evaluated: list[int] = []

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        evaluated.append(round)
        return MetricRecord({"norm": float(np.linalg.norm(arrays["head.bias"].numpy()))})

    strategy = MeanUpdate(
        "lenet", classes=10, settings=replace(EXPERIMENT.training, seed=None), min_train_nodes=2
    )
    result = strategy.start(clients, initial, num_rounds=3, evaluate_fn=evaluate)
    trained = result.arrays.to_torch_state_dict()
    assert trained.keys() == expected.keys()
    assert max(float((trained[name] - expected[name]).abs().max()) for name in expected) < 1e-6
    assert evaluated == [0, 1, 2, 3]
    assert [dict(metrics) for metrics in result.train_metrics_clientapp.values()] == [
        {"asked": 2, "used": 2}
    ] * 3


def test_too_few_valid_replies_end_the_run_with_an_error(clients: Any, tmp_path: Path) -> None:
    (tmp_path / "two" / "client.json").write_text(json.dumps({"data": "sample"}))
    torch.manual_seed(0)
    initial = ArrayRecord(dict(make_model("lenet").named_parameters()))
    strategy = MeanUpdate("lenet", classes=10, settings=EXPERIMENT.training, min_train_nodes=2)
    with pytest.raises(
        ProtectionError, match=r"^round 1: 1 of 2 nodes .* \(node 2: error 100: the client sent"
    ):
        strategy.start(clients, initial, num_rounds=3)


@pytest.mark.processes
def test_the_librarys_server_trains_with_it_and_handles_silent_nodes(clients: Any, tmp_path: Path) -> None:
    torch.manual_seed(derive_seed(7, "model"))
    task = Task(LeNet(), example=torch.zeros(1, 3, 32, 32))
    settings = asdict(EXPERIMENT.training)
    del settings["seed"], settings["sampled"], settings["rounds"]
    config = RunConfig(str(tmp_path), deadline=0.5, node_timeout=0.5, **settings)
    lines: list[dict[str, Any]] = []
    remote = RemoteClients(clients, task, config, EXPERIMENT, lines.append)
    parameters = get_parameters(task)
    for round in (1, 2, 3):
        parameters = parameters - remote.mean_update(round)
        set_parameters(task, parameters)
    run_experiment(EXPERIMENT, tmp_path / "local")
    expected = load_file(tmp_path / "local" / "weights.safetensors")
    trained = task.parameters()
    assert max(float((trained[name] - expected[name]).abs().max()) for name in expected) < 1e-6
    original, clients.nodes[2] = clients.nodes[2], silent
    remote.mean_update(4)
    remote.mean_update(5)
    clients.nodes[1] = silent
    with pytest.raises(
        ProtectionError, match=r"^round 6: 0 of 1 nodes .* \(node 1: no reply within 0.5 s\)$"
    ):
        remote.mean_update(6)
    with pytest.raises(DataError, match=r"^nodes: 0 connected and free after 0.5 s, expected 1$"):
        remote.mean_update(7)
    clients.nodes[2] = original
    late = next(m for m in clients.pushed if m.metadata.group_id == "4" and m.metadata.dst_node_id == 2)
    clients.replies[late.metadata.message_id] = original(late)
    remote.mean_update(8)
    summaries = [(line["round"], line["asked"], line["used"], line["busy"]) for line in lines]
    assert summaries == [
        (1, 2, 2, 0),
        (2, 2, 2, 0),
        (3, 2, 2, 0),
        (4, 2, 1, 0),
        (5, 1, 1, 1),
        (6, 1, 0, 1),
        (8, 1, 1, 1),
    ]
    assert lines[3]["rejected"] == {"2": "no reply within 0.5 s"}
