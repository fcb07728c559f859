"""Servers and clients that violate the protocol: their messages are rejected, and nothing is revealed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refiner.federation.secure import AggregationError, Identity, SecureClient, SpoiledSum, primitives
from refiner.federation.secure import client as client_module
from refiner.federation.secure.masks import seed_commitment
from refiner.federation.secure.messages import KeyAdvertisement
from refiner.federation.secure.secret_sharing import share_secret

pytestmark = pytest.mark.hostile

MakeRound = Callable[..., Any]


def flip_bit(raw: bytes, position: int) -> bytes:
    changed = bytearray(raw)
    changed[position] ^= 1
    return bytes(changed)


def assert_rejects(client: Any, step: str, *message: Any, match: str) -> None:
    """The step raises, and the client has left the round without any secret."""
    with pytest.raises(AggregationError, match=match) as caught:
        getattr(client, step)(*message)
    assert "\n" not in str(caught.value)
    assert client.step == "aborted"
    assert client._state.secrets == ()
    assert client._state.shares == {}


# Key advertisement and share keys.


def test_a_replaced_public_key_is_rejected(make_round: MakeRound) -> None:
    run = make_round(5)
    keys = run.server.collect_keys(run.advertise_keys())
    server_identity, context = Identity.generate(), run.config.context
    secret = primitives.draw_secret()
    public = primitives.public_key(secret), primitives.public_key(primitives.draw_secret())
    commitment = seed_commitment(context, 1, secret)
    # The server replaces the keys of client 1 by its own: signed by itself, or with the old signature.
    resigned = KeyAdvertisement.create(server_identity.sign, context, 1, *public, commitment).to_bytes()
    unsigned = resigned[:96] + keys["advert:1"][96:]
    for c, replaced in ((0, resigned), (2, unsigned)):
        message = keys | {"advert:1": replaced}
        assert_rejects(run.clients[c], "share_keys", message, match="client 1: not signed by it")


@pytest.mark.parametrize("position", [0, 40, 70, 100])
def test_a_changed_key_advertisement_is_rejected(make_round: MakeRound, position: int) -> None:
    run = make_round(3, 2)
    keys = run.server.collect_keys(run.advertise_keys())
    changed = keys | {"advert:1": flip_bit(keys["advert:1"], position)}
    assert_rejects(run.clients[0], "share_keys", changed, match="client 1: not signed by it for this round")


def test_a_key_advertisement_of_another_client_is_rejected(make_round: MakeRound) -> None:
    run = make_round(3, 2)
    keys = run.server.collect_keys(run.advertise_keys())
    assert_rejects(
        run.clients[0], "share_keys", keys | {"advert:1": keys["advert:2"]}, match="client 1: not signed"
    )


@pytest.mark.parametrize(
    "change", [{"number": 2}, {"session": "other"}, {"threshold": 4}, {"instructions_digest": b"2" * 32}]
)
def test_keys_of_another_round_are_rejected(make_round: MakeRound, change: dict[str, Any]) -> None:
    old = make_round(5)
    keys = old.server.collect_keys(old.advertise_keys())
    new = make_round(5, **({"threshold": 3, "identities": old.identities} | change))
    new_keys = new.server.collect_keys(new.advertise_keys())
    assert_rejects(
        new.clients[0], "share_keys", keys, match="of another session, round, instructions or settings"
    )
    # In a message of this round, the signature is still of the old one.
    mixed = new_keys | {"advert:1": keys["advert:1"]}
    assert_rejects(new.clients[2], "share_keys", mixed, match="client 1: not signed by it for this round")


def test_shares_replayed_from_the_same_round_are_rejected(make_round: MakeRound) -> None:
    old = make_round(5)
    old_shares = old.share_keys(old.server.collect_keys(old.advertise_keys()))
    new = make_round(5, identities=old.identities)
    new.share_keys(new.server.collect_keys(new.advertise_keys()))
    replayed = {f"from:{c}": old_shares[c]["to:0"] for c in range(1, 5)}
    message = {"step": b"mask", "context": new.config.context} | replayed
    match = "clients with valid shares: 1, expected 3 or more; nothing was sent"
    assert_rejects(new.clients[0], "mask_update", new.updates[0], message, match=match)


def test_a_client_does_not_begin_a_round_twice(make_round: MakeRound) -> None:
    run = make_round(3, 2, number=7)
    SecureClient(run.config, 0, run.identities[0], last_round=6)
    for last_round in (7, 8):
        with pytest.raises(
            AggregationError, match=rf"^round 7: client 0 has begun round {last_round} already$"
        ):
            SecureClient(run.config, 0, run.identities[0], last_round=last_round)


def test_a_client_checks_that_its_own_keys_are_unchanged(make_round: MakeRound) -> None:
    run = make_round(5)
    keys = run.server.collect_keys(run.advertise_keys())
    without = {name: value for name, value in keys.items() if name != "advert:0"}
    assert_rejects(
        run.clients[0], "share_keys", without, match="that of client 0 itself is missing or changed"
    )
    other_run = make_round(5, identities=run.identities)
    other_keys = {"advert:1": other_run.clients[1].advertise_keys()["advert"]}
    assert_rejects(run.clients[1], "share_keys", keys | other_keys, match="itself is missing or changed")


def test_a_public_key_that_appears_twice_is_rejected(make_round: MakeRound) -> None:
    run = make_round(3, 2)
    advertised = run.advertise_keys()
    victim, sign = advertised[1]["advert"], run.identities[2].sign
    copied = KeyAdvertisement.create(sign, run.config.context, 2, victim[:32], victim[32:64], victim[64:96])
    keys = run.server.collect_keys(advertised | {2: advertised[2] | {"advert": copied.to_bytes()}})
    assert_rejects(run.clients[0], "share_keys", keys, match="the same public key appears twice")


def test_too_few_keys_and_unknown_clients_are_rejected(make_round: MakeRound) -> None:
    run = make_round(5)
    keys = run.server.collect_keys(run.advertise_keys())
    few = {name: value for name, value in keys.items() if name not in ("advert:3", "advert:4", "advert:2")}
    assert_rejects(
        run.clients[0], "share_keys", few, match="key advertisements: 2, expected 3 or more; nothing was sent"
    )
    assert_rejects(
        run.clients[1],
        "share_keys",
        keys | {"advert:9": keys["advert:2"]},
        match="expected advert:ID of a client",
    )


# Encrypted shares.


@pytest.mark.parametrize("position", [0, 11, 12, 60, -1])
def test_a_client_that_damages_its_shares_drives_nobody_out(make_round: MakeRound, position: int) -> None:
    """Clients 0 and 3 get damaged shares from client 1, which the others can unmask without them."""
    run = make_round(5)
    shares = run.until_mask()
    for c in (0, 3):
        shares[c] = shares[c] | {"from:1": flip_bit(shares[c]["from:1"], position)}
    result = run.finish(shares)
    assert result.clients == tuple(range(5)) and not run.server.rejected
    assert np.allclose(result.mean, run.updates.double().mean(0), atol=1e-9, rtol=0)


def test_a_ciphertext_of_or_for_another_client_counts_as_damaged(make_round: MakeRound) -> None:
    run = make_round(4)
    messages = run.until_mask()
    for c, wrong in ((0, messages[1]["from:2"]), (1, messages[1]["from:3"])):
        run.clients[c].mask_update(run.updates[c], messages[c] | {"from:2": wrong})
        assert 2 not in run.clients[c]._state.shares


@pytest.mark.parametrize("dropouts", [[], [1]], ids=["seed", "key"])
def test_a_client_whose_shares_nobody_can_use_is_named(make_round: MakeRound, dropouts: list[int]) -> None:
    run = make_round(5)
    shares = run.until_mask()
    for c in (0, 2, 3, 4):
        shares[c] = shares[c] | {"from:1": flip_bit(shares[c]["from:1"], 20)}
    with pytest.raises(SpoiledSum, match=r"of client 1: [01] shares, expected 3 or more") as caught:
        run.finish(shares, dropouts)
    assert caught.value.client == 1


def test_clients_that_received_different_keys_reject_each_other(make_round: MakeRound) -> None:
    run = make_round(5)
    keys = run.server.collect_keys(run.advertise_keys())
    fewer = {name: value for name, value in keys.items() if name != "advert:4"}
    shared = {c: run.clients[c].share_keys(fewer if c == 1 else keys) for c in range(3)}
    ciphertexts = {"from:1": shared[1]["to:0"], "from:2": shared[2]["to:0"]}
    message = {"step": b"mask", "context": run.config.context} | ciphertexts
    match = "clients with valid shares: 2, expected 3 or more"
    assert_rejects(run.clients[0], "mask_update", run.updates[0], message, match=match)


def test_too_few_clients_that_shared_are_rejected(make_round: MakeRound) -> None:
    run = make_round(5)
    message = run.until_mask()[0]
    few = {name: value for name, value in message.items() if name not in ("from:1", "from:2", "from:3")}
    assert_rejects(
        run.clients[0],
        "mask_update",
        run.updates[0],
        few,
        match="clients with valid shares: 2, expected 3 or more",
    )


def test_a_share_for_another_index_counts_as_damaged(
    make_round: MakeRound, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_round(3, 2)
    keys = run.server.collect_keys(run.advertise_keys())
    # Client 0 sends the shares in the wrong order.
    monkeypatch.setattr(client_module, "share_secret", lambda *arguments: share_secret(*arguments)[::-1])
    wrong = {0: run.clients[0].share_keys(keys)}
    monkeypatch.undo()
    shares = run.server.collect_shares(run.share_keys(keys, dropouts=[0]) | wrong)
    run.clients[2].mask_update(run.updates[2], shares[2])
    assert set(run.clients[2]._state.shares) == {1, 2}


# Consistency check and unmasking.


def survivors_message(run: Any, step: str, survivors: list[int], **fields: bytes) -> dict[str, bytes]:
    raw = {"survivors": b"".join(c.to_bytes(8, "big") for c in survivors)}
    return {"step": step.encode(), "context": run.config.context} | raw | fields


@pytest.mark.parametrize(
    ("survivors", "match"),
    [
        ([1, 2, 3, 4], "client 0 among them"),
        ([0, 1, 2, 7], "expected clients that shared"),
        ([0, 1], "survivors: 2, expected 3 or more; nothing was sent"),
        ([0, 1, 1, 2], "in increasing order, without duplicates"),
        ([2, 1, 0], "in increasing order, without duplicates"),
        ([], "client 0 among them"),
    ],
)
def test_a_wrong_list_of_survivors_is_rejected(
    make_round: MakeRound, survivors: list[int], match: str
) -> None:
    run = make_round(5)
    run.until_confirm()
    assert_rejects(
        run.clients[0], "confirm_survivors", survivors_message(run, "confirm", survivors), match=match
    )


def test_a_client_never_reveals_both_shares_of_another(make_round: MakeRound) -> None:
    run = make_round(5)
    everyone = run.until_confirm()
    fewer = survivors_message(run, "confirm", [0, 1, 2, 3])
    signed = {c: run.clients[c].confirm_survivors(everyone) for c in range(5)}
    # The server asks for a signature of a second list.
    with pytest.raises(AggregationError, match="client 0: asked for confirm, but its next step is unmask"):
        run.clients[0].confirm_survivors(fewer)
    signatures = run.server.collect_signatures(signed)
    # The server uses another list than the signed one, to get the key share of client 4.
    assert_rejects(
        run.clients[0],
        "unmask",
        signatures | {"survivors": fewer["survivors"]},
        match="not those that this client signed; no share is revealed",
    )
    # The server asks twice.
    revealed = run.clients[1].unmask(signatures)
    assert {name for name in revealed if name.startswith("key:")} == set()
    with pytest.raises(AggregationError, match="client 1: asked for unmask, but its next step is done"):
        run.clients[1].unmask(signatures)


def test_one_share_of_each_client_is_revealed(make_round: MakeRound) -> None:
    run = make_round(5)
    message = run.until_unmask(dropouts=[1, 4])
    for c in (0, 2, 3):
        revealed = set(run.clients[c].unmask(message)) - {"step", "context"}
        assert revealed == {"seed:0", "seed:2", "seed:3", "key:1", "key:4"}


def test_a_server_that_sends_two_lists_of_survivors_gets_no_share(make_round: MakeRound) -> None:
    run = make_round(5)
    run.until_confirm()
    # Some clients are told that client 4 survived, the others that it dropped out.
    lists = {c: [0, 1, 2, 3, 4] if c in (0, 1, 4) else [0, 1, 2, 3] for c in range(5)}
    signatures = {
        c: run.clients[c].confirm_survivors(survivors_message(run, "confirm", lists[c]))["signature"]
        for c in range(5)
    }
    named = {f"signature:{c}": signature for c, signature in signatures.items()}
    for c in (2, 3):
        only = {f"signature:{other}": signatures[other] for other in (2, 3)}
        mixed = {name: value for name, value in named.items() if name != "signature:4"}
        message = survivors_message(run, "unmask", lists[c], **(only if c == 2 else mixed))
        match = "signatures of survivors: 2, expected 3" if c == 2 else "client 0: not of these survivors"
        assert_rejects(run.clients[c], "unmask", message, match=match)


def test_signatures_of_another_round_are_rejected(make_round: MakeRound) -> None:
    old = make_round(3, 2)
    survivors = old.until_confirm()
    old_signatures = {c: old.clients[c].confirm_survivors(survivors)["signature"] for c in range(3)}
    new = make_round(3, 2, identities=old.identities)
    new.clients[0].confirm_survivors(new.until_confirm())
    named = {f"signature:{c}": signature for c, signature in old_signatures.items()}
    assert_rejects(
        new.clients[0],
        "unmask",
        survivors_message(new, "unmask", [0, 1, 2], **named),
        match="client 0: not of these",
    )


def test_the_signature_of_a_client_that_dropped_out_does_not_count(make_round: MakeRound) -> None:
    run = make_round(5)
    survivors = run.until_confirm(dropouts=[4])
    signed = {f"signature:{c}": run.clients[c].confirm_survivors(survivors)["signature"] for c in (0, 1)}
    forged = signed | {"signature:4": run.identities[4].sign("anything")}
    message = survivors_message(run, "unmask", [0, 1, 2, 3], **forged)
    assert_rejects(
        run.clients[0], "unmask", message, match="'signature:4': expected signature:ID of a client"
    )


# Malformed messages and misbehaving clients: the server names them and continues.


def test_malformed_messages_raise_one_line_errors(make_round: MakeRound) -> None:
    run = make_round(5)
    keys = run.server.collect_keys(run.advertise_keys())
    broken: list[tuple[Any, str]] = [
        (None, "share message: NoneType, expected a dict of bytes"),
        ({"step": "share"}, "share message: expected names as strings and values as bytes"),
        (keys | {"step": b"mask"}, "share message: of another step"),
        (keys | {"advert:1": b"short"}, "advert:1: 5 bytes, expected 160"),
        (keys | {"advert:01": keys["advert:1"]}, "field 'advert:01': expected advert:ID"),
    ]
    for c, (message, match) in enumerate(broken):
        assert_rejects(run.clients[c], "share_keys", message, match=match)


def test_invalid_responses_are_reported_and_the_other_clients_continue(make_round: MakeRound) -> None:
    run = make_round(9, 5)
    advertised = run.advertise_keys()
    advertised[8] = advertised[8] | {"advert": flip_bit(advertised[8]["advert"], 5)}
    keys = run.server.collect_keys(advertised | {11: advertised[0]})
    shared = run.share_keys(keys)
    del shared[7]["to:0"]
    shares = run.server.collect_shares(shared)
    assert set(shares) == set(range(7))
    masked = run.mask_updates(shares)
    masked[6] = masked[6] | {"masked": masked[6]["masked"][8:]}
    survivors = run.server.collect_masked_updates(masked)
    confirmed = {c: run.clients[c].confirm_survivors(survivors) for c in range(6)}
    confirmed[5] = confirmed[5] | {"signature": flip_bit(confirmed[5]["signature"], 0)}
    signatures = run.server.collect_signatures(confirmed)
    result = run.server.aggregate({c: run.clients[c].unmask(signatures) for c in range(5)})
    assert result.clients == tuple(range(6))
    assert np.allclose(result.mean, run.updates[:6].double().mean(0), atol=1e-9, rtol=0)
    assert run.server.rejected == {
        8: "key advertisement of client 8: not signed by it for this round; its keys may have been replaced",
        11: "advertise: client 11 was not asked",
        7: "shares of client 7: expected one for every other client",
        6: "masked: 48 bytes, expected 56",
        5: "signature of client 5: not of these survivors",
    }


@pytest.mark.parametrize("position", [4, 20, 36, 51])
@pytest.mark.parametrize(("kind", "dropouts"), [("seed", []), ("key", [2])])
def test_wrong_shares_are_left_out_if_others_are_enough(
    make_round: MakeRound, kind: str, dropouts: list[int], position: int
) -> None:
    run = make_round(3, 2)
    message = run.until_unmask(dropouts)
    revealed = {c: run.clients[c].unmask(message) for c in range(3) if c not in dropouts}
    revealed[0] = revealed[0] | {f"{kind}:2": flip_bit(revealed[0][f"{kind}:2"], position)}
    if not dropouts:
        assert np.allclose(
            run.server.aggregate(revealed).mean, run.updates.double().mean(0), atol=1e-9, rtol=0
        )
        return
    match = rf"^{kind} of client 2: the shares do not recover the one it committed to$"
    with pytest.raises(SpoiledSum, match=match):
        run.server.aggregate(revealed)


def test_two_clients_that_reveal_wrong_shares_spoil_no_sum_of_nine(make_round: MakeRound) -> None:
    run = make_round(9, 5)
    message = run.until_unmask(dropouts=[8])
    revealed = {c: run.clients[c].unmask(message) for c in range(8)}
    for liar in (0, 3):
        wrong = {name: flip_bit(raw, 9) for name, raw in revealed[liar].items() if ":" in name}
        revealed[liar] = revealed[liar] | wrong
    expected = run.updates[:8].double().mean(0)
    assert np.allclose(run.server.aggregate(revealed).mean, expected, atol=1e-9, rtol=0)


def test_shares_of_the_wrong_kind_or_index_are_rejected(make_round: MakeRound) -> None:
    run = make_round(5)
    message = run.until_unmask(dropouts=[4])
    revealed = {c: run.clients[c].unmask(message) for c in range(4)}
    revealed[0] = {"seed:4" if name == "key:4" else name: value for name, value in revealed[0].items()}
    revealed[1] = revealed[2]
    with pytest.raises(AggregationError, match="unmask: 2 of 4 clients answered, expected 3 or more"):
        run.server.aggregate(revealed)
    assert run.server.rejected == {
        0: "shares from client 0: expected at most one of every client",
        1: "shares from client 1: of another index",
    }


@pytest.mark.parametrize("part", [slice(0, 48), slice(48, 56)], ids=["values", "weight"])
def test_masks_that_do_not_cancel_are_detected(make_round: MakeRound, part: slice) -> None:
    run = make_round(3, 2)
    masked = run.mask_updates(run.until_mask())
    changed = bytearray(masked[1]["masked"])
    changed[part] = np.random.default_rng(0).bytes(len(changed[part]))
    masked[1] = masked[1] | {"masked": bytes(changed)}
    survivors = run.server.collect_masked_updates(masked)
    message = run.server.collect_signatures(
        {c: run.clients[c].confirm_survivors(survivors) for c in range(3)}
    )
    with pytest.raises(SpoiledSum, match="sum: beyond the clients' bounds"):
        run.server.aggregate({c: run.clients[c].unmask(message) for c in range(3)})


def test_the_server_runs_its_steps_in_order(make_round: MakeRound) -> None:
    run = make_round(3, 2)
    advertised = run.advertise_keys()
    with pytest.raises(AggregationError, match="server: asked for share, but its next step is advertise"):
        run.server.collect_shares(advertised)
    run.server.collect_keys(advertised)
    with pytest.raises(AggregationError, match="server: asked for advertise, but its next step is share"):
        run.server.collect_keys(advertised)


def test_a_server_with_too_few_responses_does_not_continue(make_round: MakeRound) -> None:
    run = make_round(5)
    masked = run.mask_updates(run.until_mask())
    with pytest.raises(AggregationError, match="mask: 2 of 5 clients answered"):
        run.server.collect_masked_updates({c: masked[c] for c in (0, 1)})
    with pytest.raises(AggregationError, match="its next step is over"):
        run.server.collect_masked_updates(masked)
