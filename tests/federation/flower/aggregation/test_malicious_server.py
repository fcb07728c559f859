"""A client's app facing a malicious server, or with a wrong private folder: it replies with an error only."""

import json
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from refiner.federation import Experiment, FederatedSettings
from refiner.federation.flower import client
from refiner.federation.flower.app_files import write_clients
from refiner.federation.flower.client_secrets import load_identity
from refiner.federation.flower.messages import instructions_digest
from refiner.federation.flower.secure_messages import StepRequest, from_records
from refiner.federation.secure import AggregationError, Identity
from refiner.files import locked

pytestmark = pytest.mark.hostile

RUN = 77
TWO_OF_THREE = "secure:threshold=2,minimum=2"
DIGEST = bytes(32)


def assert_rejected(reply: Message, kind: str, message: str, log: pytest.CaptureFixture[str]) -> None:
    """The reply is an error; the message is in the client's log, and sent only if it depends on no data."""
    assert reply.has_error() and not reply.has_content() and reply.error.code == 100
    logged = log.readouterr().err
    assert f"refiner: {kind}: " in logged and message in logged
    if kind in ("AggregationError", "RefusedRequest"):
        assert message in reply.error.reason
    else:
        assert reply.error.reason == "the client sent nothing; see the client's log"


def test_a_replaced_key_is_rejected(federation: Any, capfd: pytest.CaptureFixture[str]) -> None:
    fed = federation(aggregation=TWO_OF_THREE)
    attacker = Identity.generate()

    def replace_key(step: str, node: int, content: RecordDict) -> RecordDict:
        if (step, node) == ("share", 1001):
            record = content.config_records["message"]
            advertisement = record["advert:1"]
            assert isinstance(advertisement, bytes)
            # A masking key whose secret the server knows, signed with the server's own identity.
            forged = advertisement[:32] + attacker.public + advertisement[64:96]
            record["advert:1"] = forged + attacker.sign("advert", record["context"], 1, forged[:32])
        return content

    fed.change = replace_key
    # The message is the same object for all clients, so all of them reject it.
    with pytest.raises(AggregationError, match=r"^share: 0 of 3 clients answered"):
        fed.mean()
    assert "not signed by it" in capfd.readouterr().err
    # The client is out of the round: it answers neither the original message nor a later step.
    assert_rejected(
        fed.send_again("share", 1001), "AggregationError", "this client is not in the round", capfd
    )
    assert json.loads((fed.folders[0] / "aggregation.json").read_text())["state"] is None


@pytest.mark.parametrize("scale", [1e3, 1e25])
def test_an_update_beyond_the_bound_is_clipped_and_never_refused(scale: float, federation: Any) -> None:
    """A server that chooses the weights chooses for which data the update exceeds the bound."""
    fed, bound = federation(), 64.0
    aggregate = fed.server.mean(1, [1001, 1002, 1003], fed.instructions(scale=scale), fed.size, {})
    assert aggregate.clients == (0, 1, 2)
    assert float(aggregate.mean.abs().max()) <= bound


def test_a_round_cannot_be_repeated(federation: Any, capfd: pytest.CaptureFixture[str]) -> None:
    fed = federation()
    fed.mean(2)
    begun = "has begun round 2 already"
    assert_rejected(fed.send_again("advertise", 1001), "AggregationError", begun, capfd)
    for step in ("share", "mask", "confirm", "unmask"):
        message = f"asked for {step}, but the next step is done"
        assert_rejected(fed.send_again(step, 1001), "AggregationError", message, capfd)
    earlier = StepRequest("advertise", 1, (0, 1, 2), fed.size, DIGEST).content()
    assert_rejected(fed.send(1001, earlier), "AggregationError", begun, capfd)
    # No secret of the round is left, and a round of another run does not make the old ones available again.
    persisted = json.loads((fed.folders[0] / "aggregation.json").read_text())
    state = json.loads(persisted["state"])
    assert state["secrets"] == [] and state["shares"] == {}
    assert fed.send(1001, earlier, run=RUN + 1).has_content()
    assert_rejected(fed.send_again("advertise", 1001), "AggregationError", begun, capfd)
    fed.mean(3)
    message = "this client is not in the round"
    assert_rejected(fed.send_again("unmask", 1001), "AggregationError", message, capfd)


def test_a_client_confirms_only_one_list_of_survivors(
    federation: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    fed = federation(aggregation=TWO_OF_THREE)
    fed.drop_from("unmask", 1001)
    fed.mean()
    # A second list claims that client 1 has dropped out, after the first one said that it survived.
    content = next(c for s, n, c in fed.sent if (s, n) == ("confirm", 1001))
    message = from_records(content) | {"survivors": bytes(8) + (2).to_bytes(8, "big")}
    second = StepRequest("confirm", 1).content(message)
    expected = "asked for confirm, but the next step is unmask"
    assert_rejected(fed.send(1001, second), "AggregationError", expected, capfd)


@pytest.mark.parametrize(
    ("request_", "kind", "message"),
    [
        (
            StepRequest("advertise", 1, (0, 1), 10, DIGEST),
            "SettingError",
            "minimum = 3: a round of 2 clients could reveal the sum of",
        ),
        (
            StepRequest("advertise", 1, (0, 1, 7), 10, DIGEST),
            "AggregationError",
            "no key of client 7 in identities.json",
        ),
        (
            StepRequest("advertise", 1, (1, 2, 3), 10, DIGEST),
            "SettingError",
            "client = 0: expected one of 1, 2, 3",
        ),
        (StepRequest("share", 1), "AggregationError", "this client is not in the round"),
    ],
    ids=["too few clients", "unknown client", "without itself", "not begun"],
)
def test_a_request_that_contradicts_the_clients_settings_is_rejected(
    request_: StepRequest, kind: str, message: str, federation: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    fed = federation(clients=4)
    assert_rejected(fed.send(1001, request_.content()), kind, message, capfd)
    assert not (fed.folders[0] / "aggregation.json").exists()


def test_a_secure_client_rejects_plain_requests_and_a_plain_client_secure_ones(
    federation: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    fed = federation()
    message = "expected a step of secure aggregation"
    assert_rejected(fed.send(1001, fed.instructions()), "RefusedRequest", message, capfd)
    write_clients(Experiment(data="sample", training=FederatedSettings(clients=3)), fed.folders)
    assert fed.send(1001, fed.instructions()).has_content()
    introduce = StepRequest("introduce").content()
    assert_rejected(fed.send(1001, introduce), "RefusedRequest", "instructions: expected", capfd)


def test_instructions_of_another_round_or_a_failing_defence_end_the_clients_round(
    federation: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    fed = federation(aggregation=TWO_OF_THREE)
    # The same for all clients and announced in time, but with the batches of another round.
    with pytest.raises(AggregationError, match=r"^mask: 0 of 3 clients answered"):
        fed.server.mean(1, [1001, 1002, 1003], fed.instructions(2), fed.size, {})
    assert capfd.readouterr().err.count("instructions: for round 2, requested in round 1") == 3
    out = "this client is not in the round"
    assert_rejected(fed.send_again("mask", 1001), "AggregationError", out, capfd)
    path = fed.folders[0] / "client.json"
    settings = json.loads(path.read_text()) | {"defense": "refiner:input_range=(0,0.5)"}
    path.write_text(json.dumps(settings))
    assert fed.mean(2).clients == (1, 2)
    assert "refiner: DataError: " in capfd.readouterr().err
    assert_rejected(fed.send_again("mask", 1001), "AggregationError", out, capfd)


def test_all_sums_of_a_run_have_batches_of_one_size(
    federation: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    """With another size a server could ask for samples of an earlier sum again."""
    fed = federation()
    fed.mean(1)
    content = fed.instructions(2)
    content.config_records["config"]["batch"] = 32
    with pytest.raises(AggregationError, match=r"^mask: 0 of 3 clients answered"):
        fed.server.mean(2, [1001, 1002, 1003], content, fed.size, {})
    refusal = "refiner: RefusedRequest: batch = 32: this client accepts 64 in this run"
    assert capfd.readouterr().err.count(refusal) == 3
    assert fed.mean(3).clients == (0, 1, 2)


# With this learning rate an update rounds to 0, and with weights of 0 it has only the last bias: the sum
# would be the update of the one client that received the true instructions.
DECEPTIONS = {"lr": {"lr": 1e-30}, "weights": {"scale": 0.0}}


@pytest.mark.parametrize("deceived", [[1001], [1002, 1003, 1004]])
@pytest.mark.parametrize("deception", DECEPTIONS)
def test_clients_with_different_instructions_are_never_in_one_sum(
    deception: str,
    deceived: list[int],
    federation: Any,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed, trained, original = federation(clients=4), [], client.make_update
    monkeypatch.setattr(
        client, "make_update", lambda *arguments: trained.append(arguments[2]) or original(*arguments)
    )

    def deceive(step: str, node: int, content: RecordDict) -> RecordDict:
        if step == "mask" and node in deceived:
            return RecordDict({**content, **fed.instructions(**DECEPTIONS[deception])})
        return content

    fed.change = deceive
    if len(deceived) > 1:
        with pytest.raises(AggregationError, match=r"^mask: 1 of 4 clients answered, expected 3 or more$"):
            fed.mean()
    else:
        assert fed.mean().clients == (1, 2, 3)
    assert capfd.readouterr().err.count("instructions: digest ") == len(deceived)
    # The deceived clients did not train, and are out of the round.
    assert not {fed.folder(node) for node in deceived} & set(trained)
    for node in deceived:
        message = "this client is not in the round"
        assert_rejected(fed.send_again("mask", node), "AggregationError", message, capfd)


def test_different_instructions_are_detected_before_shares_are_sent(
    federation: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    fed, ids, nodes = federation(clients=4), (0, 1, 2, 3), (1001, 1002, 1003, 1004)
    digests = {
        node: instructions_digest(fed.instructions(lr=0.1 if node == 1001 else 1e-30)) for node in nodes
    }

    def share_reply(round: int, among: tuple[int, ...], node: int) -> Message:
        """The reply of a node that is sent the keys of some nodes, as if all had its instructions."""
        requests = {
            other: StepRequest("advertise", round, ids, fed.size, digests[other]).content() for other in among
        }
        replies = {
            other: from_records(fed.send(other, request).content) for other, request in requests.items()
        }
        keys = {f"advert:{other - 1001}": reply["advert"] for other, reply in replies.items()}
        message = {"step": b"share", "context": replies[node]["context"], **keys}
        return fed.send(node, StepRequest("share", round).content(message))

    for round, node in enumerate(nodes, start=1):
        unsigned = f"of client {1 if node == 1001 else 0}: not signed by it for this round"
        assert_rejected(share_reply(round, nodes, node), "AggregationError", unsigned, capfd)
    too_few = "key advertisements: 1, expected 3 or more"
    assert_rejected(share_reply(5, (1001,), 1001), "AggregationError", too_few, capfd)
    # The keys of clients with the same instructions are accepted.
    assert share_reply(6, nodes[1:], 1002).has_content()


def test_a_client_with_another_digest_is_left_out_of_the_sum(federation: Any) -> None:
    fed = federation(clients=4)

    def deceive(step: str, node: int, content: RecordDict) -> RecordDict:
        if (step, node) == ("advertise", 1001):
            return StepRequest("advertise", 1, (0, 1, 2, 3), fed.size, DIGEST).content()
        return content

    fed.change = deceive
    aggregate = fed.mean()
    assert aggregate.clients == (1, 2, 3)
    assert float((aggregate.mean - fed.plain_mean(fed.folders[1:])).abs().max()) < 1e-8
    assert [*fed.rejected] == [1001]
    assert fed.rejected[1001].startswith("advertise message: of another session, round, ")


def test_a_client_runs_one_step_at_a_time(federation: Any, capfd: pytest.CaptureFixture[str]) -> None:
    fed = federation()
    request = StepRequest("advertise", 1, (0, 1, 2), 10, DIGEST).content()
    with locked(fed.folders[0], ValueError()):
        message = "this client is answering another request"
        assert_rejected(fed.send(1001, request), "RefusedRequest", message, capfd)
    assert fed.send(1001, request).has_content()
    assert (fed.folders[0] / "aggregation.json").stat().st_mode & 0o077 == 0


def test_missing_or_unprotected_files_are_rejected(
    federation: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    fed = federation()
    folder, introduce = fed.folders[0], StepRequest("introduce").content()

    def assert_rejects(message: str) -> None:
        assert_rejected(fed.send(1001, introduce), "DataError", message, capfd)

    assert (folder / "identity").stat().st_mode & 0o077 == 0
    (folder / "identities.json").chmod(0o666)
    assert_rejects("others can write it; use chmod 600")
    (folder / "identities.json").chmod(0o600)
    (folder / "identity").chmod(0o644)
    assert_rejects("identity: others can read")
    (folder / "identity").unlink()
    assert_rejects("create it with `refiner identity")
    load_identity(folder, create=True)
    assert_rejects("contains this client's own key 0 times")
    (folder / "identities.json").write_text("[]")
    assert_rejects("expected the clients' public keys as JSON")
    (fed.folders[1] / "aggregation.json").write_text("{")
    advertise = StepRequest("advertise", 1, (0, 1, 2), 10, DIGEST).content()
    message = "unreadable; delete it when no training of it is running"
    assert_rejected(fed.send(1002, advertise), "DataError", message, capfd)
