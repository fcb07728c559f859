"""The strategy with real messages, in one process: what it asks, what it lets in, and who drives it."""

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
from refiner.errors import DataError, ProtectionError, SettingError
from refiner.federation import Experiment, Training, run_experiment
from refiner.federation.flower import nodes, server
from refiner.federation.flower.client import client_app
from refiner.federation.flower.messages import Order, answer, to_arrays
from refiner.federation.flower.nodes import Nodes
from refiner.federation.flower.run_config import Rules
from refiner.federation.flower.server import RemoteClients
from refiner.federation.flower.strategy import MeanMove
from refiner.federation.flower.study import write_clients
from refiner.federation.local import get_parameters, set_parameters, weighted_mean
from refiner.federation.schedule import derived
from refiner.models import LeNet, build

RUN = 77
SHAPES = {"weight": torch.Size([2, 3]), "bias": torch.Size([2])}
VALUES = torch.linspace(-1, 1, 8)
TRAINING = Training(clients=3, batch=8, lr=0.1)
# By node: unlike in size, so that the bits of their sum depend on the order in which they are added up.
MOVES = {3: 1000.3, 11: 0.7, 20: -777.7}
SAMPLES = {3: 4, 11: 7, 20: 2}

Reply = Callable[[Message], Message | None]


@pytest.fixture(autouse=True)
def in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, RUN)
    for module in (nodes, server):
        monkeypatch.setattr(module, "_POLL", 0.01)


class Grid:
    """Nodes that answer at once, or when they are told to."""

    def __init__(self, answers: dict[int, Reply]) -> None:
        self.answers = answers
        self.replies: dict[str, Message] = {}
        self.pushed: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return list(reversed(self.answers))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        ids = []
        for message in messages:
            ids.append(f"m{len(self.pushed)}")
            message.metadata.__dict__["_message_id"] = ids[-1]  # as Flower's own grids do
            self.pushed.append(message)
            reply = self.answers[message.metadata.dst_node_id](message)
            if reply is not None:
                self.replies[ids[-1]] = reply
        return ids

    def pull_messages(self, ids: Iterable[str]) -> list[Message]:
        return [self.replies.pop(each) for each in ids if each in self.replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def move(node: int) -> Tensor:
    return MOVES[node] * torch.linspace(0.1, 1, 8)


def mean_of(*nodes: int) -> Tensor:
    return weighted_mean(torch.stack([move(node) for node in nodes]), [SAMPLES[node] for node in nodes])


def good(asked: Message) -> Message:
    node = asked.metadata.dst_node_id
    return Message(answer(move(node), SHAPES, SAMPLES[node]), reply_to=asked)


def silent(asked: Message) -> None:
    return None


def changed(change: Callable[[RecordDict], None]) -> Reply:
    """A node whose answer is spoiled before it leaves."""

    def reply(asked: Message) -> Message:
        made = good(asked)
        change(made.content)
        return made

    return reply


def asked_of(grid: Any, strategy: MeanMove, round: int = 1) -> list[Message]:
    """The replies of a round."""
    orders = strategy.configure_train(round, to_arrays(VALUES, SHAPES), ConfigRecord(), grid)
    replies: list[Message] = grid.send_and_receive(orders)
    return replies


def strategy_for(**changes: Any) -> MeanMove:
    plain = {"model": "lenet", "classes": 10, "training": TRAINING, "start_with": 1, "nodes": Nodes(0.05)}
    return MeanMove(**{**plain, **changes})


def flat(arrays: ArrayRecord | None) -> Tensor:
    assert arrays is not None
    return torch.cat([torch.from_numpy(arrays[name].numpy()).flatten() for name in SHAPES])


# What is asked ----------------------------------------------------------------------------------------------


def test_the_orders_of_a_round() -> None:
    grid: Any = Grid(dict.fromkeys(MOVES, good))
    strategy = strategy_for(life=60.0)
    asked_of(grid, strategy, 4)
    assert [order.metadata.dst_node_id for order in grid.pushed] == [3, 11, 20]
    for order in grid.pushed:
        assert Order.read(order.content) == Order(4, "lenet", 10, batch=8, local_steps=1, lr=0.1)
        assert (order.metadata.group_id, order.metadata.ttl, order.metadata.message_type) == (
            "4",
            60,
            "train",
        )
        assert torch.equal(flat(order.content.array_records["arrays"]), VALUES)
    some, chosen = strategy_for(training=replace(TRAINING, sampled=2)), []
    for round in range(1, 9):
        orders = some.configure_train(round, to_arrays(VALUES, SHAPES), ConfigRecord(), grid)
        chosen.append([order.metadata.dst_node_id for order in orders])
    assert all(len(each) == 2 for each in chosen) and len({tuple(each) for each in chosen}) > 1


def test_what_can_not_be_asked() -> None:
    grid: Any = Grid({3: good})
    strategy, arrays = strategy_for(), to_arrays(VALUES, SHAPES)
    with pytest.raises(SettingError, match=r"^train_config = {'seed': 1}: expected none"):
        strategy.configure_train(1, arrays, ConfigRecord({"seed": 1}), grid)
    with pytest.raises(DataError, match=r"^initial_arrays: empty"):
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    with pytest.raises(DataError, match=r"^round 2: the model can't be sent: weight: holds NaN or infinity$"):
        strategy.configure_train(2, to_arrays(VALUES * np.nan, SHAPES), ConfigRecord(), grid)
    arrays["counter"] = Array(np.array(3))
    with pytest.raises(DataError, match=r"^round 1: the model can't be sent: counter: 'int64' of"):
        strategy.configure_train(1, arrays, ConfigRecord(), grid)
    waiting = strategy_for(start_with=0)
    with pytest.raises(DataError, match=r"^waited 0.05 s for 3 nodes, 1 are there and free$"):
        waiting.configure_train(1, to_arrays(VALUES, SHAPES), ConfigRecord(), grid)
    assert grid.pushed == []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"minimum": 4}, r"minimum = 4: expected an integer in \[1, 3\]"),
        ({"minimum": 0}, r"minimum = 0: expected an integer in \[1, 3\]"),
        ({"start_with": 4}, r"start_with = 4: expected an integer in \[0, 3\]"),
        ({"life": 0.0}, "life = 0.0: expected a number in"),
        ({"classes": 0}, "classes = 0: expected an integer ≥ 1"),
    ],
)
def test_wrong_settings(wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingError, match=f"^{told}"):
        strategy_for(**wrong)


# What is let in ---------------------------------------------------------------------------------------------


def test_the_mean_is_by_samples_and_in_no_order_of_arrival() -> None:
    grid, strategy = Grid(dict.fromkeys(MOVES, good)), strategy_for()
    replies = asked_of(grid, strategy)
    mean = mean_of(3, 11, 20)
    # The controls: in another order the bits are others, and without the samples far more than these.
    assert not torch.equal(mean_of(3, 20, 11), mean)
    assert float((torch.stack([move(node) for node in MOVES]).mean(0) - mean).abs().min()) > 1
    for order in ((0, 1, 2), (0, 2, 1), (2, 1, 0)):
        came = [replies[place] for place in order]
        found = strategy.gather(came)
        assert found.move is not None and torch.equal(found.move, mean)
        arrays, metrics = strategy.aggregate_train(1, came)
        assert torch.equal(flat(arrays), VALUES - mean)
        assert list(arrays) == list(SHAPES) and dict(metrics) == {"asked": 3, "used": 3}


def with_arrays(**arrays: Any) -> Reply:
    return changed(lambda content: content.array_records["arrays"].update(arrays))


def with_count(count: int) -> Reply:
    return changed(lambda content: content.metric_records["metrics"].update({"num-examples": count}))


def without(key: str, name: str | None = None) -> Reply:
    """A node that leaves a record out, or one of its arrays."""

    def remove(content: RecordDict) -> None:
        if name is None:
            del content[key]
        else:
            del content.array_records[key][name]

    return changed(remove)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (lambda asked: Message(Error(100, "no\ndata"), reply_to=asked), "error 100: no data"),
        (with_arrays(bias=Array(np.array([0, np.nan], np.float32))), "bias: holds NaN or infinity"),
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
        (silent, "no answer in time"),
    ],
)
def test_the_others_go_on(reply: Reply, told: str) -> None:
    strategy = strategy_for(minimum=2)
    replies = asked_of(Grid({3: good, 11: reply, 20: good}), strategy)
    found = strategy.gather(replies)
    assert found.rejected == {11: told} and (found.asked, found.used) == (3, 2)
    arrays, metrics = strategy.aggregate_train(1, replies)
    assert torch.equal(flat(arrays), VALUES - mean_of(3, 20)) and dict(metrics) == {"asked": 3, "used": 2}
    strict = strategy_for(minimum=3)
    replies = asked_of(Grid({3: good, 11: reply, 20: good}), strict)
    with pytest.raises(ProtectionError) as error:
        strict.aggregate_train(1, replies)
    least = "2 of 3 nodes gave a good answer, at least 3 must"
    assert str(error.value) == f"round 1: {least} (node 11: {told})"


def test_all_who_were_left_out_are_named_in_order() -> None:
    strategy = strategy_for(minimum=2)
    replies = asked_of(Grid({3: without("metrics"), 11: good, 20: without("arrays")}), strategy)
    wrong = r"\(node 3: num-examples = None: [^;]*; node 20: arrays: missing\)$"
    with pytest.raises(ProtectionError, match=rf"^round 1: 1 of 3 nodes gave a good answer.* {wrong}"):
        strategy.aggregate_train(1, replies[::-1])


def test_nobody_speaks_twice_or_for_another() -> None:
    strategy = strategy_for()
    replies = asked_of(Grid({3: good, 11: good, 20: silent}), strategy)
    expected = strategy.gather(replies).move
    about = Metadata(RUN, "", 20, RUN, replies[0].metadata.reply_to_message_id, "1", 0.0, 60.0, "train")
    second = make_message(about, answer(move(20), SHAPES, 4))
    about = Metadata(RUN, "", 20, RUN, "never sent", "1", 0.0, 60.0, "train")
    unasked = make_message(about, answer(move(20), SHAPES, 4))
    found = strategy.gather([*replies, second, unasked])
    assert expected is not None and found.move is not None and torch.equal(found.move, expected)
    assert found.used == 2 and [*found.rejected] == [20]
    # What it says of itself does not count: it is the node to which the order went.
    spoiled = make_message(second.metadata, RecordDict({"metrics": MetricRecord({"num-examples": 4})}))
    assert strategy.gather([spoiled, replies[1]]).reasons["3"] == "arrays: missing"


def test_moves_that_are_too_large_for_the_model() -> None:
    huge = with_arrays(bias=Array(np.full(2, 3e38, np.float32)))
    strategy = strategy_for()
    replies = asked_of(Grid({3: huge}), strategy)
    with pytest.raises(ProtectionError, match=r"^round 1: the model is no longer finite"):
        strategy.aggregate_train(1, replies)


def test_a_late_node_is_asked_again_once_its_old_answer_is_there() -> None:
    grid, strategy = Grid({3: good, 11: silent, 20: good}), strategy_for(start_with=3)
    asked = []
    for round in (1, 2, 3):
        if round == 3:
            late = next(order for order in grid.pushed if order.metadata.dst_node_id == 11)
            grid.replies[late.metadata.message_id] = good(late)
            grid.answers[11] = good
        before = len(grid.pushed)
        found = strategy.gather(asked_of(grid, strategy, round), within=45)
        asked.append([order.metadata.dst_node_id for order in grid.pushed[before:]])
        assert found.rejected == ({11: "no answer within 45 s"} if round == 1 else {})
        assert strategy.nodes.busy == (1 if round == 2 else 0)
    assert asked == [[3, 11, 20], [3, 20], [3, 11, 20]]


def test_nodes_are_not_asked_to_test(caplog: pytest.LogCaptureFixture) -> None:
    strategy: Any = strategy_for(minimum=2)
    assert strategy.configure_evaluate(1, to_arrays(VALUES, SHAPES), ConfigRecord(), Grid({})) == []
    assert strategy.aggregate_evaluate(1, []) is None
    with caplog.at_level("INFO", "flwr"):
        strategy.summary()
    for told in ("model lenet, classes 10, batch 8, local steps 1, lr 0.1", "3 of 3 take part", "2 or more"):
        assert told in caplog.text


# Who drives it ----------------------------------------------------------------------------------------------

STUDY = Experiment(
    data="sample", defense="pruning:rate=0.8", training=Training(rounds=3, clients=2, batch=8, lr=0.1, seed=7)
)


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[Grid]:
    """The library's client apps as nodes 1 and 2, with the folders of a study."""
    homes = [tmp_path / "one", tmp_path / "two"]
    write_clients(STUDY, homes)

    def node(home: Path, number: int) -> Reply:
        context = Context(RUN, number, {"folder": str(home)}, RecordDict(), {})
        return lambda asked: client_app()(asked, context)

    yield Grid({number: node(home, number) for number, home in enumerate(homes, start=1)})


def test_flower_drives_it_to_the_weights_of_the_local_engine(clients: Any, tmp_path: Path) -> None:
    run_experiment(STUDY, tmp_path / "local")
    expected = load_file(tmp_path / "local" / "weights.safetensors")
    torch.manual_seed(derived(7, "model"))
    start = ArrayRecord(dict(build("lenet").named_parameters()))
    tested: list[int] = []

    def test(round: int, arrays: ArrayRecord) -> MetricRecord:
        tested.append(round)
        return MetricRecord({"norm": float(np.linalg.norm(arrays["head.bias"].numpy()))})

    strategy = MeanMove("lenet", classes=10, training=replace(STUDY.training, seed=None), minimum=2)
    result = strategy.start(clients, start, num_rounds=3, evaluate_fn=test)
    found = result.arrays.to_torch_state_dict()
    assert found.keys() == expected.keys()
    assert max(float((found[name] - expected[name]).abs().max()) for name in expected) < 1e-6
    assert tested == [0, 1, 2, 3]
    assert [dict(each) for each in result.train_metrics_clientapp.values()] == [{"asked": 2, "used": 2}] * 3


def test_flower_ends_with_an_error_if_too_few_answer(clients: Any, tmp_path: Path) -> None:
    (tmp_path / "two" / "client.json").write_text(json.dumps({"data": "sample"}))
    torch.manual_seed(0)
    start = ArrayRecord(dict(build("lenet").named_parameters()))
    strategy = MeanMove("lenet", classes=10, training=STUDY.training, minimum=2)
    with pytest.raises(
        ProtectionError, match=r"^round 1: 1 of 2 nodes .* \(node 2: error 100: the client sent"
    ):
        strategy.start(clients, start, num_rounds=3)


def test_the_librarys_server_drives_it(clients: Any, tmp_path: Path) -> None:
    torch.manual_seed(derived(7, "model"))
    task = Task(LeNet(), example=torch.zeros(1, 3, 32, 32))
    training = asdict(STUDY.training)
    del training["seed"], training["sampled"], training["rounds"]
    rules, lines = Rules(str(tmp_path), deadline=0.5, patience=0.5, **training), list[dict[str, Any]]()
    remote = RemoteClients(clients, task, rules, STUDY, lines.append)
    values = get_parameters(task)
    for round in (1, 2, 3):
        values = values - remote.moves(round)
        set_parameters(task, values)
    run_experiment(STUDY, tmp_path / "local")
    expected = load_file(tmp_path / "local" / "weights.safetensors")
    found = task.parameters()
    assert max(float((found[name] - expected[name]).abs().max()) for name in expected) < 1e-6
    answering, clients.answers[2] = clients.answers[2], silent
    remote.moves(4)
    remote.moves(5)
    clients.answers[1] = silent
    with pytest.raises(
        ProtectionError, match=r"^round 6: 0 of 1 nodes .* \(node 1: no answer within 0.5 s\)$"
    ):
        remote.moves(6)
    with pytest.raises(DataError, match=r"^waited 0.5 s for 1 nodes, 0 are there and free$"):
        remote.moves(7)
    clients.answers[2] = answering
    owed = next(m for m in clients.pushed if m.metadata.group_id == "4" and m.metadata.dst_node_id == 2)
    clients.replies[owed.metadata.message_id] = answering(owed)
    remote.moves(8)
    told = [(line["round"], line["asked"], line["used"], line["busy"]) for line in lines]
    assert told == [
        (1, 2, 2, 0),
        (2, 2, 2, 0),
        (3, 2, 2, 0),
        (4, 2, 1, 0),
        (5, 1, 1, 1),
        (6, 1, 0, 1),
        (8, 1, 1, 1),
    ]
    assert lines[3]["rejected"] == {"2": "no answer within 0.5 s"}
