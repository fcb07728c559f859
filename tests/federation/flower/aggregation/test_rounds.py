"""Secure aggregation through the apps of both sides, in one process: the mean, dropouts, and validation."""

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
from refiner.federation import Experiment, FederatedSettings
from refiner.federation.flower import server
from refiner.federation.flower.aggregation import Secure, session_name
from refiner.federation.flower.client_secrets import load_identity
from refiner.federation.flower.client_settings import ClientSettings
from refiner.federation.flower.run_config import RunConfig
from refiner.federation.flower.secure_messages import StepRequest, from_records
from refiner.federation.flower.secure_server import SecureRounds
from refiner.federation.flower.server import RemoteClients
from refiner.federation.local import weighted_mean
from refiner.federation.secure import AggregationError

RUN = 77
TWO_OF_THREE = "secure:threshold=2,minimum=2"


@pytest.mark.parametrize("defense", ["none", "pruning:rate=0.8"])
def test_the_mean_is_that_of_the_updates_weighted_by_samples(defense: str, federation: Any) -> None:
    fed = federation(defense=defense, partition="dirichlet:0.5")
    for round in (1, 2):
        aggregate = fed.mean(round)
        updates, samples = zip(*(fed.unmasked_update(folder, round) for folder in fed.folders), strict=True)
        assert len(set(samples)) > 1
        assert aggregate.clients == (0, 1, 2) and aggregate.weight == sum(samples)
        expected = weighted_mean(torch.stack(updates), samples)
        assert float((aggregate.mean - expected).abs().max()) < 1e-8 and float(expected.abs().max()) > 1e-3
    assert fed.rejected == {}
    assert [step for step, node, _ in fed.sent if node == 1001].count("introduce") == 1


def test_a_masked_update_is_not_correlated_with_the_update(federation: Any) -> None:
    fed = federation()
    fed.mean()
    update, weight = fed.unmasked_update(fed.folders[0])
    reply = fed.received["mask", 1001]
    assert sorted(reply) == ["masked", "message"]
    masked = from_records(reply, max_bytes=8 * (len(update) + 1))["masked"]
    vector = np.frombuffer(masked, dtype="<i8")[:-1].astype(np.float64)
    assert abs(np.corrcoef(vector, update.numpy())[0, 1]) < 0.05
    encoded = Secure().encoding.encode(update, weight)
    # Positive control: without masks the same numbers are correlated.
    assert np.corrcoef(encoded.view("<i8").astype(np.float64), update.numpy())[0, 1] > 0.999999
    for step in ("introduce", "advertise", "share", "confirm", "unmask"):
        fields = from_records(fed.received[step, 1001])
        assert sum(map(len, fields.values())) < 1000


@pytest.mark.parametrize("step", ["advertise", "share", "mask", "confirm", "unmask"])
def test_one_client_may_drop_out_at_any_step(step: str, federation: Any) -> None:
    fed = federation(aggregation=TWO_OF_THREE)
    fed.drop_from(step, 1002)
    aggregate = fed.mean()
    included = [0, 1, 2] if step in ("confirm", "unmask") else [0, 2]
    assert list(aggregate.clients) == included
    expected = fed.plain_mean([fed.folders[client] for client in included])
    assert float((aggregate.mean - expected).abs().max()) < 1e-8
    assert fed.rejected == {1002: "no reply"}
    fed.change = lambda step, node, content: content
    assert fed.mean(2).clients == (0, 1, 2)


def test_fewer_clients_than_the_threshold_reveal_nothing(federation: Any) -> None:
    fed = federation()
    fed.drop_from("unmask", 1002)
    with pytest.raises(AggregationError, match=r"^unmask: 2 of 3 clients answered, expected 3 or more$"):
        fed.mean()


class Grid:
    """Nodes that reply at once, or never."""

    def __init__(self, federation: Any) -> None:
        self.federation = federation
        self.replies: dict[str, Message] = {}
        self.count = 0

    def get_node_ids(self) -> list[int]:
        return [1001 + position for position in range(len(self.federation.folders))]

    def push_messages(self, messages: list[Message]) -> list[str]:
        for message in messages:
            node = message.metadata.dst_node_id
            contents, _ = self.federation.exchange(1, {node: message.content})
            metadata = Metadata(RUN, "", node, 1, f"m{self.count}", "1", 0.0, 3600.0, "train")
            self.count += 1
            if node in contents:
                self.replies[metadata.reply_to_message_id] = make_message(metadata, contents[node])
        return [f"m{number}" for number in range(self.count - len(messages), self.count)]

    def pull_messages(self, ids: list[str]) -> list[Message]:
        return [self.replies[message_id] for message_id in ids if message_id in self.replies]


def test_remote_clients_aggregate_securely_and_report_missing_nodes(
    federation: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, RUN)
    monkeypatch.setattr(server, "_POLL_SECONDS", 0.01)  # these nodes reply at once
    fed, summaries = federation(), []
    run: dict[str, Any] = {"clients": 3, "batch": 64, "lr": 0.1}
    config = RunConfig(str(tmp_path), model="small", aggregation="secure", deadline=0.3, **run)
    settings = FederatedSettings(**run)
    clients = RemoteClients(
        Grid(fed),  # type: ignore[arg-type]
        fed.task,
        config,
        Experiment(data="sample", training=settings),
        summaries.append,
        lambda exchange: SecureRounds(fed.settings, fed.public_keys, session_name(RUN), exchange),
    )
    mean = clients.mean_update(1)
    assert mean.dtype == torch.float32
    assert float((mean - fed.plain_mean(fed.folders)).abs().max()) < 1e-7
    first = summaries[0]
    assert (first["asked"], first["used"], first["aggregation"]) == (3, 3, "secure")
    (fed.folders[1] / "identity").unlink()
    message = r"^round 2: advertise: 2 of 3 clients answered, expected 3 or more \(node 1002: no reply within"
    with pytest.raises(ProtectionError, match=message):
        clients.mean_update(2)
    assert summaries[1]["used"] == 0 and [*summaries[1]["rejected"]] == ["1002"]


# Malicious nodes and wrong settings -------------------------------------------------------------------------


def test_a_node_can_only_be_the_client_whose_key_it_has(federation: Any) -> None:
    fed = federation(clients=4, aggregation=TWO_OF_THREE)
    introduction = fed.send(1001, StepRequest("introduce").content()).content
    copied = introduction.config_records["message"]

    def relay(round: int, contents: Mapping[int, RecordDict]) -> Any:
        replies, missing = fed.exchange(round, contents)
        if 1004 in replies and StepRequest.read(contents[1004]).step == "introduce":
            replies[1004] = RecordDict({"message": copied})  # another node's introduction
        return replies, missing

    fed.server.exchange = relay
    assert fed.mean().clients == (0, 1, 2)
    assert fed.rejected == {1004: "introduction as client 0: not signed by it"}
    # After a restart a client has another node id.
    fed.server.exchange = fed.exchange
    fed.folders.append(fed.folders[1])
    assert fed.mean(2, [1001, 1003, 1005]).clients == (0, 1, 2)
    assert 1002 not in fed.server.client_of_node


@pytest.mark.parametrize(
    ("content", "message"),
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
def test_malformed_replies_are_rejected(content: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=f"^{message}"):
        from_records(RecordDict(content), max_bytes=16)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": 2}, "minimum = 3: a round of 2 clients could reveal the sum of 2"),
        ({"clients": 1}, "clients = 1: expected 2 or more"),
        ({"clients": 3, "batch": 5000}, "batch = 5000: expected an integer in \\[1, 4096\\]"),
        ({"clients": 3, "aggregation": "secure:threshold=1"}, "threshold = 1: expected an integer ≥ 2"),
        ({"clients": 3, "aggregation": "sicher"}, "aggregation = 'sicher': unknown"),
        ({"clients": 3, "aggregation": "secure:bound=1e9"}, "fraction_bits = 32: "),
    ],
)
def test_impossible_settings_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(RefinerError, match=f"^{message}"):
        RunConfig(**{"out": "/srv", "aggregation": "secure", **settings})


def test_an_aggregation_that_is_not_a_string_raises() -> None:
    with pytest.raises(SettingError, match=r"^aggregation = 3: expected a string"):
        ClientSettings(data="sample", defense="none", aggregation=3)  # type: ignore[arg-type]


def test_the_identity_command_creates_a_key_once(tmp_path: Path) -> None:
    first, again = (CliRunner().invoke(app, ["identity", str(tmp_path)]) for _ in range(2))
    assert first.exit_code == 0 and first.output == again.output
    assert bytes.fromhex(first.output.strip()) == load_identity(tmp_path).public
    absent = CliRunner().invoke(app, ["identity", str(tmp_path / "absent")])
    assert absent.exit_code == 2 and "no such folder" in absent.output
