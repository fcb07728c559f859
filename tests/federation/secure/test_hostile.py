"""A server or a client that does not keep to the protocol: refused, and nothing revealed."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from refiner.federation.secure import AggregationError, Identity, SecureClient, primitives
from refiner.federation.secure.masks import commitment
from refiner.federation.secure.messages import Advert

Make = Callable[..., Any]


def flip(text: bytes, at: int) -> bytes:
    changed = bytearray(text)
    changed[at] ^= 1
    return bytes(changed)


def assert_refuses(client: Any, step: str, *message: Any, match: str) -> None:
    """The step is refused, and after it the client is out of the round and knows nothing any more."""
    with pytest.raises(AggregationError, match=match) as caught:
        getattr(client, step)(*message)
    assert "\n" not in str(caught.value)
    assert client.step == "left"
    assert client._held.secrets == ()
    assert client._held.shares == {}


# Keys.


def test_a_swapped_public_key_is_refused(make_round: Make) -> None:
    play = make_round(5)
    keys = play.server.keys(play.adverts())
    mine, context = Identity.generate(), play.agreement.context
    secret = primitives.draw_secret()
    public = primitives.public_key(secret), primitives.public_key(primitives.draw_secret())
    # The server puts its own keys in the place of client 1's: signed by itself, or under the old signature.
    own = Advert.signed(mine.sign, context, 1, *public, commitment(context, 1, secret)).to_bytes()
    under = own[:96] + keys["advert:1"][96:]
    for at, swapped in enumerate((own, under)):
        assert_refuses(
            play.clients[at * 2], "share", keys | {"advert:1": swapped}, match="client 1: not signed by it"
        )


@pytest.mark.parametrize("at", [0, 40, 70, 100])
def test_a_changed_advert_is_refused(make_round: Make, at: int) -> None:
    play = make_round(3, 2)
    keys = play.server.keys(play.adverts())
    changed = keys | {"advert:1": flip(keys["advert:1"], at)}
    assert_refuses(play.clients[0], "share", changed, match="client 1: not signed by it for this round")


def test_an_advert_under_another_id_is_refused(make_round: Make) -> None:
    play = make_round(3, 2)
    keys = play.server.keys(play.adverts())
    assert_refuses(
        play.clients[0], "share", keys | {"advert:1": keys["advert:2"]}, match="client 1: not signed"
    )


@pytest.mark.parametrize(
    "change", [{"number": 2}, {"session": "other"}, {"threshold": 4}, {"order": b"2" * 32}]
)
def test_a_replayed_round_is_refused(make_round: Make, change: dict[str, Any]) -> None:
    old = make_round(5)
    keys = old.server.keys(old.adverts())
    new = make_round(5, **({"threshold": 3, "identities": old.identities} | change))
    fresh = new.server.keys(new.adverts())
    assert_refuses(new.clients[0], "share", keys, match="of another session, round, order or settings")
    # Relabelled as of this round, the signature still is of the old one.
    mixed = fresh | {"advert:1": keys["advert:1"]}
    assert_refuses(new.clients[2], "share", mixed, match="client 1: not signed by it for this round")


def test_the_same_round_replayed_gives_no_shares_of_the_new_keys(make_round: Make) -> None:
    old = make_round(5)
    old_shares = old.shares(old.server.keys(old.adverts()))
    again = make_round(5, identities=old.identities)
    again.shares(again.server.keys(again.adverts()))
    sealed = {f"from:{c}": old_shares[c]["to:0"] for c in range(1, 5)}
    message = {"step": b"mask", "context": again.agreement.context} | sealed
    assert_refuses(again.clients[0], "mask", again.updates[0], message, match="client 1: changed on the way")


def test_a_client_does_not_begin_a_round_twice(make_round: Make) -> None:
    play = make_round(3, 2, number=7)
    SecureClient(play.agreement, 0, play.identities[0], after=6)
    for after in (7, 8):
        with pytest.raises(AggregationError, match=rf"^round 7: client 0 has begun round {after} already$"):
            SecureClient(play.agreement, 0, play.identities[0], after=after)


def test_own_keys_must_be_there_and_right(make_round: Make) -> None:
    play = make_round(5)
    keys = play.server.keys(play.adverts())
    without = {name: value for name, value in keys.items() if name != "advert:0"}
    assert_refuses(play.clients[0], "share", without, match="that of client 0 itself is missing or changed")
    older = make_round(5, identities=play.identities)
    assert_refuses(
        play.clients[1], "share", keys | {"advert:1": older.clients[1].advertise()["advert"]}, match="itself"
    )


def test_a_key_used_twice_is_refused(make_round: Make) -> None:
    play = make_round(3, 2)
    adverts = play.adverts()
    stolen, context = adverts[1]["advert"], play.agreement.context
    copy = Advert.signed(
        play.identities[2].sign, context, 2, stolen[:32], stolen[32:64], stolen[64:96]
    ).to_bytes()
    keys = play.server.keys(adverts | {2: adverts[2] | {"advert": copy}})
    assert_refuses(play.clients[0], "share", keys, match="the same public key twice")


def test_too_few_keys_and_strangers_are_refused(make_round: Make) -> None:
    play = make_round(5)
    keys = play.server.keys(play.adverts())
    few = {name: value for name, value in keys.items() if name not in ("advert:3", "advert:4", "advert:2")}
    assert_refuses(play.clients[0], "share", few, match="adverts: 2, expected 3 or more; nothing leaves")
    assert_refuses(
        play.clients[1],
        "share",
        keys | {"advert:9": keys["advert:2"]},
        match="expected advert:ID of a client",
    )


# Sealed shares.


@pytest.mark.parametrize("at", [0, 11, 12, 60, -1])
def test_a_tampered_ciphertext_is_refused(make_round: Make, at: int) -> None:
    play = make_round(3, 2)
    message = play.until_mask()[0]
    changed = message | {"from:1": flip(message["from:1"], at)}
    assert_refuses(
        play.clients[0], "mask", play.updates[0], changed, match="shares of client 1: changed on the way"
    )


def test_a_ciphertext_for_another_or_of_another_is_refused(make_round: Make) -> None:
    play = make_round(4)
    messages = play.until_mask()
    for c, wrong in ((0, messages[1]["from:2"]), (1, messages[1]["from:3"]), (3, messages[2]["from:3"])):
        changed = messages[c] | {"from:2": wrong}
        assert_refuses(play.clients[c], "mask", play.updates[c], changed, match="shares of client 2: changed")


def test_clients_that_were_shown_other_keys_cannot_go_on(make_round: Make) -> None:
    play = make_round(5)
    keys = play.server.keys(play.adverts())
    fewer = {name: value for name, value in keys.items() if name != "advert:4"}
    shares = {0: play.clients[0].share(keys), 1: play.clients[1].share(fewer), 2: play.clients[2].share(keys)}
    sealed = {"from:1": shares[1]["to:0"], "from:2": shares[2]["to:0"]}
    message = {"step": b"mask", "context": play.agreement.context} | sealed
    assert_refuses(
        play.clients[0], "mask", play.updates[0], message, match="client 1: changed on the way, or of other"
    )


def test_too_few_that_shared_are_refused(make_round: Make) -> None:
    play = make_round(5)
    message = play.until_mask()[0]
    few = {name: value for name, value in message.items() if name not in ("from:1", "from:2", "from:3")}
    assert_refuses(
        play.clients[0], "mask", play.updates[0], few, match="clients that shared: 2, expected 3 or more"
    )


def test_a_share_for_another_place_is_refused(make_round: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    play = make_round(3, 2)
    keys = play.server.keys(play.adverts())
    honest = primitives.split
    monkeypatch.setattr(primitives, "split", lambda *given: honest(*given)[::-1])
    crooked = {0: play.clients[0].share(keys)}
    monkeypatch.undo()
    sealed = play.server.relay(play.shares(keys, lost=[0]) | crooked)
    match = "shares of client 0: made for another place than 3"
    assert_refuses(play.clients[2], "mask", play.updates[2], sealed[2], match=match)


# Survivors.


def told(play: Any, step: str, survivors: list[int], **more: bytes) -> dict[str, bytes]:
    raw = {"survivors": b"".join(c.to_bytes(8, "big") for c in survivors)}
    return {"step": step.encode(), "context": play.agreement.context} | raw | more


@pytest.mark.parametrize(
    ("survivors", "match"),
    [
        ([1, 2, 3, 4], "client 0 among them"),
        ([0, 1, 2, 7], "expected clients that shared"),
        ([0, 1], "survivors: 2, expected 3 or more; nothing leaves"),
        ([0, 1, 1, 2], "in rising order, none twice"),
        ([2, 1, 0], "in rising order, none twice"),
        ([], "client 0 among them"),
    ],
)
def test_wrong_survivors_are_refused(make_round: Make, survivors: list[int], match: str) -> None:
    play = make_round(5)
    play.until_confirm()
    assert_refuses(play.clients[0], "confirm", told(play, "confirm", survivors), match=match)


def test_both_shares_of_a_client_are_never_revealed(make_round: Make) -> None:
    play = make_round(5)
    everyone = play.until_confirm()
    fewer = told(play, "confirm", [0, 1, 2, 3])
    signed = {c: play.clients[c].confirm(everyone) for c in range(5)}
    # Asked to sign a second story.
    with pytest.raises(AggregationError, match="client 0: asked for confirm, but its next step is unmask"):
        play.clients[0].confirm(fewer)
    signatures = play.server.signatures(signed)
    # Asked to unmask by another story than it signed: client 4's key share in the place of its seed share.
    assert_refuses(
        play.clients[0],
        "unmask",
        signatures | {"survivors": fewer["survivors"]},
        match="not those that this client signed; no share is revealed",
    )
    # Asked twice.
    revealed = play.clients[1].unmask(signatures)
    assert {name for name in revealed if name.startswith("key:")} == set()
    with pytest.raises(AggregationError, match="client 1: asked for unmask, but its next step is done"):
        play.clients[1].unmask(signatures)


def test_of_each_client_one_share_is_revealed(make_round: Make) -> None:
    play = make_round(5)
    survivors = play.until_confirm(lost=[1, 4])
    kept = [0, 2, 3]
    signatures = play.server.signatures({c: play.clients[c].confirm(survivors) for c in kept})
    for c in kept:
        revealed = set(play.clients[c].unmask(signatures)) - {"step", "context"}
        assert revealed == {"seed:0", "seed:2", "seed:3", "key:1", "key:4"}


def test_a_server_that_tells_two_stories_gets_no_share(make_round: Make) -> None:
    play = make_round(5)
    play.until_confirm()
    # Client 4 survived for some, and dropped out for the others.
    stories = {c: [0, 1, 2, 3, 4] if c in (0, 1, 4) else [0, 1, 2, 3] for c in range(5)}
    signatures = {
        c: play.clients[c].confirm(told(play, "confirm", stories[c]))["signature"] for c in range(5)
    }
    named = {f"signature:{c}": signature for c, signature in signatures.items()}
    for c in (2, 3):
        only = {f"signature:{other}": signatures[other] for other in (2, 3)}
        mixed = {name: value for name, value in named.items() if name != "signature:4"}
        message = told(play, "unmask", stories[c], **(only if c == 2 else mixed))
        match = "signatures of survivors: 2, expected 3" if c == 2 else "client 0: not of these survivors"
        assert_refuses(play.clients[c], "unmask", message, match=match)


def test_a_signature_of_another_round_is_refused(make_round: Make) -> None:
    old = make_round(3, 2)
    survivors = old.until_confirm()
    before = {c: old.clients[c].confirm(survivors)["signature"] for c in range(3)}
    new = make_round(3, 2, identities=old.identities)
    new.clients[0].confirm(new.until_confirm())
    named = {f"signature:{c}": signature for c, signature in before.items()}
    assert_refuses(
        new.clients[0], "unmask", told(new, "unmask", [0, 1, 2], **named), match="client 0: not of these"
    )


def test_an_identity_outside_the_survivors_does_not_count(make_round: Make) -> None:
    play = make_round(5)
    survivors = play.until_confirm(lost=[4])
    signed = {f"signature:{c}": play.clients[c].confirm(survivors)["signature"] for c in (0, 1)}
    forged = signed | {"signature:4": play.identities[4].sign("anything")}
    message = told(play, "unmask", [0, 1, 2, 3], **forged)
    assert_refuses(
        play.clients[0], "unmask", message, match="'signature:4': expected signature:ID of a client"
    )


# Messages and clients that are not as agreed: the server names them and goes on.


def test_malformed_messages_are_one_line(make_round: Make) -> None:
    play = make_round(5)
    keys = play.server.keys(play.adverts())
    broken: list[tuple[Any, str]] = [
        (None, "share message: NoneType, expected a dict of bytes"),
        ({"step": "share"}, "share message: expected text names and bytes only"),
        (keys | {"step": b"mask"}, "share message: of another step"),
        (keys | {"advert:1": b"short"}, "advert:1: 5 bytes, expected 160"),
        (keys | {"advert:01": keys["advert:1"]}, "field 'advert:01': expected advert:ID"),
    ]
    for c, (message, match) in enumerate(broken):
        assert_refuses(play.clients[c], "share", message, match=match)


def test_a_client_that_answers_wrongly_is_named_and_the_others_go_on(make_round: Make) -> None:
    play = make_round(9, 5)
    adverts = play.adverts()
    adverts[8] = adverts[8] | {"advert": flip(adverts[8]["advert"], 5)}
    keys = play.server.keys(adverts | {11: adverts[0]})
    shares = play.shares(keys)
    del shares[7]["to:0"]
    sealed = play.server.relay(shares)
    assert set(sealed) == set(range(7))
    masked = play.masked(sealed)
    masked[6] = masked[6] | {"masked": masked[6]["masked"][8:]}
    survivors = play.server.survivors(masked)
    confirmed = {c: play.clients[c].confirm(survivors) for c in range(6)}
    confirmed[5] = confirmed[5] | {"signature": flip(confirmed[5]["signature"], 0)}
    signatures = play.server.signatures(confirmed)
    got = play.server.aggregate({c: play.clients[c].unmask(signatures) for c in range(5)})
    assert got.clients == tuple(range(6))
    assert np.allclose(got.mean, play.updates[:6].double().mean(0), atol=1e-9, rtol=0)
    assert play.server.refused == {
        8: "advert of client 8: not signed by it for this round; its keys may have been swapped",
        11: "advertise: client 11 was not asked",
        7: "shares of client 7: not one for every other client",
        6: "masked: 48 bytes, expected 56",
        5: "signature of client 5: not of these survivors",
    }


@pytest.mark.parametrize(("kind", "lost"), [("seed", []), ("key", [2])])
def test_wrong_shares_give_an_error_and_no_wrong_mean(make_round: Make, kind: str, lost: list[int]) -> None:
    play = make_round(3, 2)
    survivors = play.until_confirm(lost)
    kept = [c for c in range(3) if c not in lost]
    signatures = play.server.signatures({c: play.clients[c].confirm(survivors) for c in kept})
    revealed = {c: play.clients[c].unmask(signatures) for c in kept}
    revealed[0] = revealed[0] | {f"{kind}:2": flip(revealed[0][f"{kind}:2"], 20)}
    with pytest.raises(
        AggregationError, match=rf"^{kind} of client 2: the shares do not give what it signed$"
    ):
        play.server.aggregate(revealed)


def test_shares_of_the_wrong_kind_or_place_are_refused(make_round: Make) -> None:
    play = make_round(5)
    survivors = play.until_confirm(lost=[4])
    kept = range(4)
    signatures = play.server.signatures({c: play.clients[c].confirm(survivors) for c in kept})
    revealed = {c: play.clients[c].unmask(signatures) for c in kept}
    revealed[0] = {"seed:4" if name == "key:4" else name: value for name, value in revealed[0].items()}
    revealed[1] = revealed[2]
    with pytest.raises(AggregationError, match="unmask: 2 of 4 clients answered, expected 3 or more"):
        play.server.aggregate(revealed)
    assert play.server.refused == {
        0: "shares from client 0: not one of every client",
        1: "shares from client 1: of another place",
    }


@pytest.mark.parametrize("part", [slice(0, 48), slice(48, 56)], ids=["values", "weight"])
def test_masks_that_do_not_cancel_are_noticed(make_round: Make, part: slice) -> None:
    play = make_round(3, 2)
    masked = play.masked(play.until_mask())
    changed = bytearray(masked[1]["masked"])
    changed[part] = np.random.default_rng(0).bytes(len(changed[part]))
    masked[1] = masked[1] | {"masked": bytes(changed)}
    survivors = play.server.survivors(masked)
    signatures = play.server.signatures({c: play.clients[c].confirm(survivors) for c in range(3)})
    with pytest.raises(AggregationError, match="sum: more than the clients' bounds allow"):
        play.server.aggregate({c: play.clients[c].unmask(signatures) for c in range(3)})


def test_the_server_keeps_to_the_order_too(make_round: Make) -> None:
    play = make_round(3, 2)
    adverts = play.adverts()
    with pytest.raises(AggregationError, match="server: asked for share, but its next step is advertise"):
        play.server.relay(adverts)
    play.server.keys(adverts)
    with pytest.raises(AggregationError, match="server: asked for advertise, but its next step is share"):
        play.server.keys(adverts)


def test_after_too_few_answers_a_server_is_over(make_round: Make) -> None:
    play = make_round(5)
    masked = play.masked(play.until_mask())
    with pytest.raises(AggregationError, match="mask: 2 of 5 clients answered"):
        play.server.survivors({c: masked[c] for c in (0, 1)})
    with pytest.raises(AggregationError, match="its next step is over"):
        play.server.survivors(masked)
