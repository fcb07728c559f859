"""Secure aggregation through the apps of both sides, in one process: what adds up, and what is survived."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata
from flwr.supercore.task_identity import TaskIdentity
from typer.testing import CliRunner

from refiner.cli import app
from refiner.errors import DataError, ProtectionError, RefinerError, SettingError
from refiner.federation import Experiment, Training
from refiner.federation.flower import server
from refiner.federation.flower.aggregation import Ask, Secure, from_records, session_of
from refiner.federation.flower.client import ClientSettings
from refiner.federation.flower.client_secrets import identity_in
from refiner.federation.flower.run_config import Rules
from refiner.federation.flower.secure_server import SecureRounds
from refiner.federation.flower.server import RemoteClients
from refiner.federation.local import weighted_mean
from refiner.federation.secure import AggregationError

RUN = 77
TWO_OF_THREE = "secure:threshold=2,minimum=2"


@pytest.mark.parametrize("defense", ["none", "pruning:rate=0.8"])
def test_the_mean_is_that_of_the_moves_by_samples(defense: str, federation: Any) -> None:
    made = federation(defense=defense, partition="dirichlet:0.5")
    for round in (1, 2):
        opened = made.mean(round)
        moves, sizes = zip(*(made.move(home, round) for home in made.homes), strict=True)
        assert len(set(sizes)) > 1
        assert opened.clients == (0, 1, 2) and opened.weight == sum(sizes)
        expected = weighted_mean(torch.stack(moves), sizes)
        assert float((opened.mean - expected).abs().max()) < 1e-8 and float(expected.abs().max()) > 1e-3
    assert made.rejected == {}
    assert [step for step, node, _ in made.sent if node == 1001].count("introduce") == 1


def test_what_a_client_answers_does_not_hold_its_move(federation: Any) -> None:
    made = federation()
    made.mean()
    move, weight = made.move(made.homes[0])
    answer = made.got["mask", 1001]
    assert sorted(answer) == ["masked", "message"]
    raw = from_records(answer, most=8 * (len(move) + 1))["masked"]
    vector = np.frombuffer(raw, dtype="<i8")[:-1].astype(np.float64)
    assert abs(np.corrcoef(vector, move.numpy())[0, 1]) < 0.05
    encoded = Secure().encoding.encode(move, weight)
    # The control: without its masks the same numbers would be found.
    assert np.corrcoef(encoded.view("<i8").astype(np.float64), move.numpy())[0, 1] > 0.999999
    for step in ("introduce", "advertise", "share", "confirm", "unmask"):
        fields = from_records(made.got[step, 1001])
        assert sum(map(len, fields.values())) < 1000


@pytest.mark.parametrize("step", ["advertise", "share", "mask", "confirm", "unmask"])
def test_one_client_may_drop_out_at_any_step(step: str, federation: Any) -> None:
    made = federation(aggregation=TWO_OF_THREE)
    made.lose(step, 1002)
    opened = made.mean()
    in_it = [0, 1, 2] if step in ("confirm", "unmask") else [0, 2]
    assert list(opened.clients) == in_it
    expected = made.plain_mean([made.homes[client] for client in in_it])
    assert float((opened.mean - expected).abs().max()) < 1e-8
    assert made.rejected == {1002: "no answer"}
    made.change = lambda step, node, content: content
    assert made.mean(2).clients == (0, 1, 2)


def test_fewer_than_the_threshold_open_nothing(federation: Any) -> None:
    made = federation()
    made.lose("unmask", 1002)
    with pytest.raises(AggregationError, match=r"^unmask: 2 of 3 clients answered, expected 3 or more$"):
        made.mean()


class Grid:
    """Nodes that answer at once, or never."""

    def __init__(self, federation: Any) -> None:
        self.federation = federation
        self.replies: dict[str, Message] = {}
        self.count = 0

    def get_node_ids(self) -> list[int]:
        return [1001 + place for place in range(len(self.federation.homes))]

    def push_messages(self, messages: list[Message]) -> list[str]:
        for message in messages:
            node = message.metadata.dst_node_id
            found, _ = self.federation.exchange(1, {node: message.content})
            about = Metadata(RUN, "", node, 1, f"m{self.count}", "1", 0.0, 3600.0, "train")
            self.count += 1
            if node in found:
                self.replies[about.reply_to_message_id] = make_message(about, found[node])
        return [f"m{number}" for number in range(self.count - len(messages), self.count)]

    def pull_messages(self, ids: list[str]) -> list[Message]:
        return [self.replies[each] for each in ids if each in self.replies]


def test_the_rounds_of_a_training(federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, RUN)
    monkeypatch.setattr(server, "_POLL", 0.01)  # nodes that answer at once need no waiting for
    made, lines = federation(), []
    rules = Rules(str(tmp_path), clients=3, aggregation="secure", batch=64, lr=0.1, deadline=0.3)
    experiment = Experiment(data="sample", training=Training(clients=3, batch=64, lr=0.1))
    clients = RemoteClients(
        Grid(made),  # type: ignore[arg-type]
        made.task,
        rules,
        experiment,
        lines.append,
        lambda exchange: SecureRounds(made.settings, made.known, session_of(RUN), exchange),
    )
    mean = clients.moves(1)
    assert mean.dtype == torch.float32
    assert float((mean - made.plain_mean(made.homes)).abs().max()) < 1e-7
    assert (lines[0]["asked"], lines[0]["used"], lines[0]["aggregation"]) == (3, 3, "secure")
    (made.homes[1] / "identity").unlink()
    told = r"^round 2: advertise: 2 of 3 clients answered, expected 3 or more \(node 1002: no answer within"
    with pytest.raises(ProtectionError, match=told):
        clients.moves(2)
    assert lines[1]["used"] == 0 and [*lines[1]["rejected"]] == ["1002"]


# Nodes that mean ill, and settings that are wrong -----------------------------------------------------------


def test_a_node_is_the_client_that_it_can_sign_as(federation: Any) -> None:
    made = federation(clients=4, aggregation=TWO_OF_THREE)
    first = made.ask(1001, Ask("introduce").content()).content
    liar = first.config_records["message"]

    def relayed(round: int, contents: Mapping[int, RecordDict]) -> Any:
        found, missing = made.exchange(round, contents)
        if 1004 in found and Ask.read(contents[1004]).step == "introduce":
            found[1004] = RecordDict({"message": liar})  # what another node said of itself
        return found, missing

    made.server.exchange = relayed
    assert made.mean().clients == (0, 1, 2)
    assert made.rejected == {1004: "introduction as client 0: not signed by it"}
    # Started anew, a client is a node of another id.
    made.server.exchange = made.exchange
    made.homes.append(made.homes[1])
    assert made.mean(2, [1001, 1003, 1005]).clients == (0, 1, 2)
    assert 1002 not in made.server.numbers


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({}, "message: missing"),
        ({"message": ConfigRecord({"signature": "text"})}, "message: 'signature' is not one of its fields"),
        ({"message": ConfigRecord({"masked": b"1"})}, "message: 'masked' is not one of its fields"),
        ({"message": ConfigRecord(), "masked": ConfigRecord()}, "masked: expected one array"),
        (
            {"message": ConfigRecord(), "masked": ArrayRecord({"masked": Array(np.zeros(2))})},
            "masked: 'float64' of 144 bytes, expected uint8",
        ),
        (
            {"message": ConfigRecord(), "masked": ArrayRecord({"masked": Array(np.zeros((2, 2), np.uint8))})},
            r"masked: uint8 \[2, 2\], expected uint8 \[16\]",
        ),
    ],
)
def test_answers_that_are_refused(content: dict[str, Any], told: str) -> None:
    with pytest.raises(DataError, match=f"^{told}"):
        from_records(RecordDict(content), most=16)


def test_settings_that_are_refused() -> None:
    for wrong, told in (
        ({"clients": 2}, "minimum = 3: a round of 2 clients would open a sum of 2"),
        ({"clients": 1}, "clients = 1: expected 2 or more"),
        ({"clients": 3, "batch": 5000}, "batch = 5000: expected an integer in \\[1, 4096\\]"),
        ({"clients": 3, "aggregation": "secure:threshold=1"}, "threshold = 1: expected an integer ≥ 2"),
        ({"clients": 3, "aggregation": "sicher"}, "aggregation = 'sicher': unknown"),
        ({"clients": 3, "aggregation": "secure:bound=1e9"}, "fraction_bits = 32: 2 clients × weight 4096"),
    ):
        with pytest.raises(RefinerError, match=f"^{told}"):
            Rules(**{"out": "/srv", "aggregation": "secure", **wrong})
    with pytest.raises(SettingError, match=r"^aggregation = 3: expected text"):
        ClientSettings(data="sample", defense="none", aggregation=3)  # type: ignore[arg-type]


def test_the_command_that_makes_a_key(tmp_path: Path) -> None:
    one, again = (CliRunner().invoke(app, ["identity", str(tmp_path)]) for _ in range(2))
    assert one.exit_code == 0 and one.output == again.output
    assert bytes.fromhex(one.output.strip()) == identity_in(tmp_path).public
    absent = CliRunner().invoke(app, ["identity", str(tmp_path / "absent")])
    assert absent.exit_code == 2 and "no such folder" in absent.output
