"""Messages changed at random, in both directions: only clean errors, and every honest client is served.

REFINER_FUZZ=10000 tries that many mutations of each kind.
"""

import io
import os
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.message import make_message
from flwr.app.metadata import Metadata

from refiner.federation import Experiment, FederatedSettings
from refiner.federation.flower.app_files import write_clients
from refiner.federation.flower.messages import instructions_digest, to_arrays, update_content
from refiner.federation.flower.secure_messages import StepRequest
from refiner.federation.flower.strategy import MeanUpdate
from refiner.federation.secure import SpoiledSum, SpoilerSearch

pytestmark = pytest.mark.hostile

COUNT = int(os.environ.get("REFINER_FUZZ", "0"))
SHAPES = {"weight": torch.Size([2, 3]), "bias": torch.Size([2])}


def some_bytes(rng: random.Random) -> bytes:
    """Random bytes, and files that NumPy reads as something else than one array of numbers."""
    archive = io.BytesIO()
    np.savez(archive, a=np.zeros(2, np.float32))
    header = b"\x93NUMPY\x01\x00v\x00{'descr': '%s', 'fortran_order': False, 'shape': (%s,), }"
    kinds = [
        rng.randbytes(rng.choice([0, 1, 8, 200])),
        archive.getvalue(),
        header % (b"|O", b"2"),
        header % (b"<f4", b"9" * rng.choice([3, 12, 30])),
        header % (b"<U9", b"-1"),
    ]
    return rng.choice(kinds)


def some_value(rng: random.Random) -> Any:
    values = [
        0,
        -1,
        2**62,
        1e308,
        -0.0,
        float("nan"),
        "",
        "\x1b[2J\n",
        "a" * 300,
        b"",
        rng.randbytes(9),
        True,
    ]
    return rng.choice([*values, rng.randbytes(9), [1, 2], [1.5], [b"a"], ["x"]])


def mutated_array(rng: random.Random, array: Array) -> Array:
    data, dtype, stype, shape = bytearray(array.data), array.dtype, array.stype, list(array.shape)
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(6)
        if kind == 0 and data:
            data[rng.randrange(len(data))] = rng.randrange(256)
        elif kind == 1:
            del data[rng.randrange(len(data) + 1) :]
        elif kind == 2:
            data = bytearray(some_bytes(rng))
        elif kind == 3:
            dtype = rng.choice(["float64", "object", "", "<U9", "float32\n"])
        elif kind == 4:
            stype = rng.choice(["", "pickle", "numpy.ndarray"])
        else:
            shape = [rng.choice([-1, 0, 2**40, 3]) for _ in range(rng.randint(0, 3))]
    return Array(dtype=dtype, shape=tuple(shape), stype=stype, data=bytes(data))


def mutated(rng: random.Random, content: RecordDict) -> RecordDict:
    """The same records, with one to three of them removed, replaced, or changed inside."""
    records: dict[str, Any] = dict(content)
    for _ in range(rng.randint(1, 3)):
        if not records:
            break
        name = rng.choice(sorted(records))
        record = records[name]
        kind = rng.randrange(4)
        if kind == 0:
            del records[name]
        elif kind == 1:
            records[name] = rng.choice([ArrayRecord(), ConfigRecord(), MetricRecord({"a": 1})])
        elif kind == 2:
            records[f"{name}{rng.choice(['', '2', chr(27)])}"] = record
        elif isinstance(record, ArrayRecord):
            arrays = dict(record)
            if arrays:
                changed = rng.choice(sorted(arrays))
                arrays[changed] = mutated_array(rng, arrays[changed])
            records[name] = ArrayRecord(arrays)
        else:
            values: dict[str, Any] = dict(record)
            changed = rng.choice([*sorted(values), "more"])
            value = some_value(rng)
            if rng.random() < 0.3 and isinstance(values.get(changed), bytes):
                value = rng.randbytes(len(values[changed]))
            values[changed] = value
            if rng.random() < 0.2:
                values.pop(changed)
            records[name] = _record(type(record), values)
    return RecordDict(records)


def _record(kind: type, values: dict[str, Any]) -> Any:
    """A record of these values; Flower itself rejects some, which no peer can send."""
    try:
        return kind(values)
    except (TypeError, ValueError):
        return kind()


def honest_reply(request: Message) -> Message:
    node = request.metadata.dst_node_id
    return Message(update_content(torch.full((8,), float(node)), SHAPES, 3), reply_to=request)


def test_the_server_survives_any_reply_and_uses_the_honest_ones() -> None:
    settings = FederatedSettings(clients=3, batch=8, lr=0.1)
    strategy = MeanUpdate("lenet", classes=10, settings=settings)
    arrays = to_arrays(torch.zeros(8), SHAPES)
    for seed in range(COUNT or 400):
        rng = random.Random(seed)
        requests = []
        for node in (1, 2, 3):
            metadata = Metadata(1, f"m{node}", 1, node, "", "1", 0.0, 3600.0, "train")
            requests.append(make_message(metadata, RecordDict({"arrays": arrays})))
        strategy._requests, strategy._sent = requests, (torch.zeros(8), SHAPES)
        replies = [honest_reply(request) for request in requests]
        replies[0] = Message(mutated(rng, replies[0].content), reply_to=requests[0])
        result = strategy.collect(replies)
        assert result.update is not None and bool(result.update.isfinite().all()), seed
        assert result.used >= 2 and set(result.rejected) <= {1}, seed
        assert all("\n" not in reason and "\x1b" not in reason for reason in result.rejected.values())


@pytest.mark.processes
def test_a_secure_round_survives_any_reply_of_one_client(federation: Callable[..., Any]) -> None:
    """The sum includes the others', or the round has none and the client that spoiled it is searched for."""
    fed = federation(clients=4, aggregation="secure:threshold=3,minimum=3")
    send, rng, completed = fed.send, random.Random(0), 0
    for number in range(COUNT or 6):
        target = ("introduce", "advertise", "share", "mask", "confirm", "unmask")[number % 6]

        def send_mutated(node: int, content: RecordDict, target: str = target) -> Any:
            reply = send(node, content)
            if node == 1001 and reply.has_content() and StepRequest.read(content).step == target:
                return SimpleNamespace(has_error=lambda: False, content=mutated(rng, reply.content))
            return reply

        fed.send = send_mutated
        fed.server.client_of_node.clear()
        fed.server.spoilers = SpoilerSearch(3, "fuzz")
        try:
            aggregate = fed.mean(number + 1)
        except SpoiledSum as error:
            # Client 0 is known if its shares were damaged; nobody can tell whose masked update was wrong.
            assert (target, error.client) in {("share", 0), ("mask", None)}, number
            continue
        completed += 1
        assert set(aggregate.clients) >= {1, 2, 3} and bool(aggregate.mean.isfinite().all())
        assert all("\n" not in reason and "\x1b" not in reason for reason in fed.rejected.values())
    assert completed


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_a_client_answers_any_request_with_its_update_or_a_clean_error(
    aggregation: str, federation: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    fed = federation()
    write_clients(
        Experiment(data="sample", training=FederatedSettings(clients=3, seed=3)),
        fed.folders,
        aggregation=aggregation,
    )
    digest = instructions_digest(fed.instructions())
    for seed in range(COUNT or 40):
        rng = random.Random(seed)
        request = fed.instructions()
        if aggregation == "secure":
            request = StepRequest("advertise", seed + 1, (0, 1, 2), fed.size, digest).content()
        (fed.folders[0] / "answered.json").unlink(missing_ok=True)
        reply = fed.send(1001, mutated(rng, request))
        assert reply.has_content() or reply.error.code == 100
        assert "Traceback" not in capfd.readouterr().err
