"""Replies of one client changed at random: the others' sum comes out, or the round is known to be spoiled.

REFINER_FUZZ=10000 tries that many mutations.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from refiner.federation.secure import STEPS, Identity, SpoiledSum
from refiner.federation.secure.messages import Message

pytestmark = pytest.mark.hostile

COUNT = int(os.environ.get("REFINER_FUZZ", "0")) or 20
HOSTILE, CLIENTS = 1, 5


def mutated(rng: random.Random, reply: Message, others: list[Message]) -> dict[str, bytes]:
    """The same fields, with one to three of them removed, renamed, or changed inside."""
    fields = dict(reply)
    for _ in range(rng.randint(1, 3)):
        if not fields:
            break
        name = rng.choice(sorted(fields))
        raw = fields[name]
        kind = rng.randrange(6)
        if kind == 0:
            del fields[name]
        elif kind == 1:
            fields[rng.choice([name + "0", "to:1", "seed:9", "", "\x1b"])] = fields.pop(name)
        elif kind == 2:
            fields[name] = rng.randbytes(len(raw))
        elif kind == 3:
            fields[name] = raw[: rng.randrange(len(raw) + 1)]
        elif kind == 4:
            fields[name] = rng.choice(others).get(name, raw)
        else:
            position = rng.randrange(len(raw)) if raw else 0
            fields[name] = raw[:position] + rng.randbytes(1) + raw[position + 1 :]
    return fields


def test_any_reply_of_one_client_leaves_the_sum_of_the_others(make_round: Callable[..., Any]) -> None:
    identities, completed = {client: Identity.generate() for client in range(CLIENTS)}, 0
    for number in range(COUNT):
        rng = random.Random(number)
        run, target = make_round(CLIENTS, number=number + 1, identities=identities), STEPS[number % 5]

        def changed(
            step: str, replies: dict[int, dict[str, bytes]], rng: random.Random = rng, target: str = target
        ) -> dict[int, dict[str, bytes]]:
            if step == target and HOSTILE in replies:
                others = [reply for client, reply in replies.items() if client != HOSTILE]
                replies[HOSTILE] = mutated(rng, replies[HOSTILE], others)
            return replies

        keys = run.server.collect_keys(changed("advertise", run.advertise_keys()))
        shares = run.server.collect_shares(changed("share", run.share_keys(keys)))
        masked = changed("mask", run.mask_updates(shares))
        survivors = run.server.collect_masked_updates(masked)
        confirmed = {c: run.clients[c].confirm_survivors(survivors) for c in run.server.survivors}
        signatures = run.server.collect_signatures(changed("confirm", confirmed))
        signed = [c for c in confirmed if c not in run.server.rejected]
        revealed = {c: run.clients[c].unmask(signatures) for c in signed}
        try:
            aggregate = run.server.aggregate(changed("unmask", revealed))
        except SpoiledSum as error:
            assert (target, error.client) in {("share", HOSTILE), ("mask", None)}, number
            continue
        completed += 1
        assert set(aggregate.clients) >= set(range(CLIENTS)) - {HOSTILE}, number
        if target != "mask":
            expected = run.updates[list(aggregate.clients)].double().mean(0)
            torch.testing.assert_close(aggregate.mean, expected, atol=1e-9, rtol=0)
        assert set(run.server.rejected) <= {HOSTILE}
        assert all("\n" not in reason and "\x1b" not in reason for reason in run.server.rejected.values())
    assert completed > COUNT // 2
