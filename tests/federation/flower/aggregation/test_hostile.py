"""A client's app before a server that means ill, or in a folder that is wrong: an error, and no more."""

import fcntl
import json
from typing import Any

import pytest
from flwr.app import Message, RecordDict

from refiner.federation import Experiment, FederatedSettings
from refiner.federation.flower import client
from refiner.federation.flower.aggregation import StepRequest, from_records
from refiner.federation.flower.client_secrets import load_identity
from refiner.federation.flower.messages import instructions_digest
from refiner.federation.flower.engine import write_clients
from refiner.federation.secure import AggregationError, Identity

RUN = 77
TWO_OF_THREE = "secure:threshold=2,minimum=2"
DIGEST = bytes(32)


def assert_refused(reply: Message, kind: str, told: str, log: pytest.CaptureFixture[str]) -> None:
    assert reply.has_error() and not reply.has_content()
    assert reply.error.code == 100 and f"({kind}; its own log says why)" in reply.error.reason
    assert told in log.readouterr().err


def test_a_key_that_was_swapped_is_refused(federation: Any, capfd: pytest.CaptureFixture[str]) -> None:
    made = federation(aggregation=TWO_OF_THREE)
    other = Identity.generate()

    def swap(step: str, node: int, content: RecordDict) -> RecordDict:
        if (step, node) == ("share", 1001):
            record = content.config_records["message"]
            advert = record["advert:1"]
            assert isinstance(advert, bytes)
            # A masking key that the server has the secret of; its own signature does not help it.
            forged = advert[:32] + other.public + advert[64:96]
            record["advert:1"] = forged + other.sign("advert", record["context"], 1, forged[:32])
        return content

    made.change = swap
    # The message is the same object for all: nobody goes on with it.
    with pytest.raises(AggregationError, match=r"^share: 0 of 3 clients answered"):
        made.mean()
    assert "its keys may have been swapped" in capfd.readouterr().err
    # It is out of the round: neither the sound message nor a later step is answered.
    assert_refused(made.again("share", 1001), "AggregationError", "this client is not in it", capfd)
    assert json.loads((made.homes[0] / "aggregation.json").read_text())["state"] is None


def test_a_round_is_not_played_again(federation: Any, capfd: pytest.CaptureFixture[str]) -> None:
    made = federation()
    made.mean(2)
    assert_refused(made.again("advertise", 1001), "AggregationError", "has begun round 2 already", capfd)
    for step in ("share", "mask", "confirm", "unmask"):
        assert_refused(
            made.again(step, 1001), "AggregationError", f"asked for {step}, its next step is done", capfd
        )
    earlier = StepRequest("advertise", 1, (0, 1, 2), made.values.numel(), DIGEST).content()
    assert_refused(made.ask(1001, earlier), "AggregationError", "has begun round 2 already", capfd)
    # Nothing secret is left of it, and a round of another training does not open the old ones again.
    held = json.loads((made.homes[0] / "aggregation.json").read_text())
    assert json.loads(held["state"])["secrets"] == [] and json.loads(held["state"])["shares"] == {}
    assert made.ask(1001, earlier, run=RUN + 1).has_content()
    assert_refused(made.again("advertise", 1001), "AggregationError", "has begun round 2 already", capfd)
    made.mean(3)
    assert_refused(made.again("unmask", 1001), "AggregationError", "this client is not in it", capfd)


def test_only_one_story_is_signed(federation: Any, capfd: pytest.CaptureFixture[str]) -> None:
    made = federation(aggregation=TWO_OF_THREE)
    made.lose("unmask", 1001)
    made.mean()
    # Client 1 is told to have dropped out, after it was told to have survived.
    content = next(c for s, n, c in made.sent if (s, n) == ("confirm", 1001))
    message = from_records(content) | {"survivors": bytes(8) + (2).to_bytes(8, "big")}
    other = StepRequest("confirm", 1).content(message)
    assert_refused(
        made.ask(1001, other), "AggregationError", "asked for confirm, its next step is unmask", capfd
    )


@pytest.mark.parametrize(
    ("ask", "kind", "told"),
    [
        (
            StepRequest("advertise", 1, (0, 1), 10, DIGEST),
            "SettingError",
            "minimum = 3: a round of 2 clients would open a",
        ),
        (
            StepRequest("advertise", 1, (0, 1, 7), 10, DIGEST),
            "AggregationError",
            "no key of client 7 in identities.json",
        ),
        (StepRequest("advertise", 1, (1, 2, 3), 10, DIGEST), "SettingError", "client = 0: expected one of 1, 2, 3"),
        (StepRequest("share", 1), "AggregationError", "this client is not in it"),
    ],
)
def test_what_a_client_knows_better(
    ask: StepRequest, kind: str, told: str, federation: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    made = federation(clients=4)
    assert_refused(made.ask(1001, ask.content()), kind, told, capfd)
    assert not (made.homes[0] / "aggregation.json").exists()


def test_no_way_around_the_masks(federation: Any, capfd: pytest.CaptureFixture[str]) -> None:
    made = federation()
    assert_refused(made.ask(1001, made.order()), "DataError", "expected a step of secure aggregation", capfd)
    write_clients(Experiment(data="sample", training=FederatedSettings(clients=3)), made.homes)
    assert made.ask(1001, made.order()).has_content()
    assert_refused(made.ask(1001, StepRequest("introduce").content()), "DataError", "order: expected", capfd)


def test_an_order_of_another_round_or_a_defence_that_fails_ends_it(
    federation: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    made = federation(aggregation=TWO_OF_THREE)
    # The same for all, and told in time: its batches are of another round all the same.
    with pytest.raises(AggregationError, match=r"^mask: 0 of 3 clients answered"):
        made.server.mean(1, [1001, 1002, 1003], made.order(2), made.values.numel(), {})
    assert capfd.readouterr().err.count("order: of round 2, asked for in round 1") == 3
    assert_refused(made.again("mask", 1001), "AggregationError", "this client is not in it", capfd)
    own = made.homes[0] / "client.json"
    own.write_text(json.dumps(json.loads(own.read_text()) | {"defense": "refiner:input_range=(0,0.5)"}))
    assert made.mean(2).clients == (1, 2)
    assert "x lies in" in capfd.readouterr().err
    assert_refused(made.again("mask", 1001), "AggregationError", "this client is not in it", capfd)


# At this rate a move rounds to 0, and with all weights 0 it has nothing but the last bias: the sum would be
# the move of the one client that got the true order.
OTHERS = {"lr": {"lr": 1e-30}, "weights": {"scale": 0.0}}


@pytest.mark.parametrize("deceived", [[1001], [1002, 1003, 1004]])
@pytest.mark.parametrize("other", OTHERS)
def test_no_sum_is_of_two_orders(
    other: str,
    deceived: list[int],
    federation: Any,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, trained, honest = federation(clients=4), [], client.make_update
    monkeypatch.setattr(client, "make_update", lambda *given: trained.append(given[2]) or honest(*given))

    def deceive(step: str, node: int, content: RecordDict) -> RecordDict:
        if step == "mask" and node in deceived:
            return RecordDict({**content, **made.order(**OTHERS[other])})
        return content

    made.change = deceive
    if len(deceived) > 1:
        with pytest.raises(AggregationError, match=r"^mask: 1 of 4 clients answered, expected 3 or more$"):
            made.mean()
    else:
        assert made.mean().clients == (1, 2, 3)
    assert capfd.readouterr().err.count("order: its digest is ") == len(deceived)
    # They did not even train, and are out.
    assert not {made.folder(node) for node in deceived} & set(trained)
    for node in deceived:
        assert_refused(made.again("mask", node), "AggregationError", "this client is not in it", capfd)


def test_two_orders_are_noticed_before_a_share_leaves(
    federation: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    made, ids, nodes = federation(clients=4), (0, 1, 2, 3), (1001, 1002, 1003, 1004)
    told = {node: instructions_digest(made.order(lr=0.1 if node == 1001 else 1e-30)) for node in nodes}

    def shared(round: int, among: tuple[int, ...], node: int) -> Message:
        """The answer of a node that is shown the keys of some, as if they were for the order it knows."""
        ask = {to: StepRequest("advertise", round, ids, made.values.numel(), told[to]).content() for to in among}
        adverts = {to: from_records(made.ask(to, content).content) for to, content in ask.items()}
        keys = {f"advert:{to - 1001}": each["advert"] for to, each in adverts.items()}
        message = {"step": b"share", "context": adverts[node]["context"], **keys}
        return made.ask(node, StepRequest("share", round).content(message))

    for round, node in enumerate(nodes, start=1):
        unsigned = f"key advertisement of client {1 if node == 1001 else 0}: not signed by it for this round"
        assert_refused(shared(round, nodes, node), "AggregationError", unsigned, capfd)
    assert_refused(shared(5, (1001,), 1001), "AggregationError", "key advertisements: 1, expected 3 or more", capfd)
    # Those of one order are enough, but the sum is of them all.
    assert shared(6, nodes[1:], 1002).has_content()


def test_who_was_told_of_another_order_is_in_no_sum(federation: Any) -> None:
    made = federation(clients=4)

    def deceive(step: str, node: int, content: RecordDict) -> RecordDict:
        if (step, node) == ("advertise", 1001):
            return StepRequest("advertise", 1, (0, 1, 2, 3), made.values.numel(), DIGEST).content()
        return content

    made.change = deceive
    opened = made.mean()
    assert opened.clients == (1, 2, 3)
    assert float((opened.mean - made.plain_mean(made.homes[1:])).abs().max()) < 1e-8
    assert made.rejected == {1001: "advertise message: of another session, round, instructions or settings"}


def test_one_step_at_a_time(federation: Any, capfd: pytest.CaptureFixture[str]) -> None:
    made = federation()
    ask = StepRequest("advertise", 1, (0, 1, 2), 10, DIGEST).content()
    with (made.homes[0] / "aggregation.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert_refused(made.ask(1001, ask), "AggregationError", "another step of this client is", capfd)
    assert made.ask(1001, ask).has_content()
    assert (made.homes[0] / "aggregation.json").stat().st_mode & 0o077 == 0


def test_folders_that_are_refused(federation: Any, capfd: pytest.CaptureFixture[str]) -> None:
    made = federation()
    home, hello = made.homes[0], StepRequest("introduce").content()
    assert (home / "identity").stat().st_mode & 0o077 == 0
    (home / "identities.json").chmod(0o666)
    assert_refused(made.ask(1001, hello), "DataError", "others may write it; use chmod 600", capfd)
    (home / "identities.json").chmod(0o600)
    (home / "identity").chmod(0o644)
    assert_refused(made.ask(1001, hello), "DataError", "identity: others may read", capfd)
    (home / "identity").unlink()
    assert_refused(made.ask(1001, hello), "DataError", "make it with `refiner identity", capfd)
    load_identity(home, new=True)
    assert_refused(made.ask(1001, hello), "DataError", "holds this client's own key 0 times", capfd)
    (home / "identities.json").write_text("[]")
    assert_refused(made.ask(1001, hello), "DataError", "expected the clients' public keys as JSON", capfd)
    (made.homes[1] / "aggregation.json").write_text("{")
    ask = StepRequest("advertise", 1, (0, 1, 2), 10, DIGEST).content()
    assert_refused(made.ask(1002, ask), "DataError", "unreadable; delete it once no training", capfd)
