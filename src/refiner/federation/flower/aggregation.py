"""How a round's moves are added up, in sight of the server or under masks; and how the steps travel."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from refiner import checks
from refiner.errors import DataError, SettingError
from refiner.federation.flower.client_secrets import others_may
from refiner.federation.secure import STEPS, AggregationError, Agreement, FixedPoint
from refiner.federation.secure.messages import ids_from_bytes, ids_to_bytes
from refiner.federation.secure.primitives import DIGEST_BYTES
from refiner.registry import make

INTRODUCE = "introduce"
"""Asked once of every node: which client it is. The steps of a round follow."""

_ASK, _MESSAGE, _MASKED = "ask", "message", "masked"
# What a header of numpy's format may add to the numbers.
_HEADER = 4096


@dataclass(frozen=True)
class Plain:
    """The server sees every client's move."""

    name: ClassVar[str] = "plain"


@dataclass(frozen=True)
class Secure:
    """The server sees the sum of the moves; every side has its own copy of these, and they must be the same.

    >>> Secure(minimum=4).least
    5
    >>> Secure(minimum=1)
    Traceback (most recent call last):
    refiner.errors.SettingError: minimum = 1: expected an integer ≥ 2
    """

    name: ClassVar[str] = "secure"

    threshold: int | None = None
    """t, how many clients must stay to the end of a round; ⌊2n/3⌋ + 1 if left out."""
    minimum: int = 3
    """The fewest clients of whom a sum may be opened: a round with a lower t is refused."""
    max_weight: int = 4096
    """The most samples that a client's move counts for."""
    bound: float = 64.0
    """The largest magnitude of a value of a move; a client with a larger one sends nothing."""
    fraction_bits: int = 32
    modulus_bits: int = 64

    def __post_init__(self) -> None:
        if self.threshold is not None:
            checks.integer("threshold", self.threshold, 2)
        checks.integer("minimum", self.minimum, 2)
        checks.integer("max_weight", self.max_weight, 1, 2**52)
        self.encoding.check_room(2, self.max_weight)

    @property
    def encoding(self) -> FixedPoint:
        """The move as whole numbers."""
        return FixedPoint(self.bound, self.fraction_bits, self.modulus_bits)

    @property
    def least(self) -> int:
        """How many clients a round needs at least, so that its t can be met and is no less than `minimum`."""
        if self.threshold is not None:
            return self.threshold
        return next(n for n in range(2, 2 * self.minimum + 1) if 2 * n // 3 + 1 >= self.minimum)

    def agreement(
        self,
        session: str,
        round: int,
        clients: Iterable[int],
        known: Mapping[int, bytes],
        size: int,
        order: bytes,
    ) -> Agreement:
        """What a side agrees to for a round of these clients, of whose keys it has `known`."""
        chosen = list(clients)
        for client in chosen:
            if client not in known:
                raise AggregationError(f"clients: no key of client {client} in identities.json")
        made = Agreement(
            session,
            round,
            {client: known[client] for client in chosen},
            size,
            self.threshold,
            self.max_weight,
            self.encoding,
            order,
        )
        if made.needed < self.minimum:
            raise SettingError(
                f"minimum = {self.minimum}: a round of {made.clients} clients would open a sum of "
                f"{made.needed}; use more clients, or a lower minimum if that is meant"
            )
        return made

    def check(self, clients: int) -> None:
        """Refuse settings with which so many clients could not take part in a round.

        >>> Secure(threshold=2, minimum=2).check(4)
        Traceback (most recent call last):
        refiner.errors.SettingError: threshold = 2: expected an integer in [3, 4]
        """
        if clients < 2:
            raise checks.wrong("clients", clients, "2 or more for aggregation = secure")
        known = {client: client.to_bytes(32, "big") for client in range(clients)}
        self.agreement("check", 0, known, known, 1, b"")


AGGREGATIONS: dict[str, Callable[..., Plain | Secure]] = {"plain": Plain, "secure": Secure}
"""Every way by name."""


def make_aggregation(text: str) -> Plain | Secure:
    """A way by its name, with settings: `secure:threshold=7`.

    >>> make_aggregation("secure:threshold=7,minimum=5").threshold
    7
    """
    if not isinstance(text, str):
        raise checks.wrong("aggregation", text, "text, such as 'secure'")
    return make(AGGREGATIONS, "aggregation", text)


def session_of(run: int) -> str:
    """The name of a training, by the id that Flower drew for its run."""
    return f"flower run {run}"


def read_identities(folder: Path) -> dict[int, bytes]:
    """The public keys of all clients, by number: `identities.json` in a side's own folder."""
    path = folder / "identities.json"
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        found = {int(client): bytes.fromhex(key) for client, key in held.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f'{path}: expected the clients\' public keys as JSON, {{"0": "hex", …}}') from error
    # Who can change the list can put in keys of its own.
    if others_may(path, 0o022):
        raise DataError(f"{path}: others may write it; use chmod 600")
    for client, key in found.items():
        checks.integer("client", client, 0, 2**63 - 1)
        if len(key) != 32:
            raise DataError(f"{path}: client {client}: {len(key)} bytes, expected 32")
    return found


def identities_text(known: Mapping[int, bytes]) -> bytes:
    """Public keys as `identities.json` holds them.

    >>> identities_text({3: b"\\x01\\x02"})
    b'{"3": "0102"}'
    """
    return json.dumps({str(client): key.hex() for client, key in sorted(known.items())}).encode()


@dataclass(frozen=True)
class Ask:
    """What a server asks of a client for one step, beside the protocol's own message.

    >>> Ask("mask", 0)
    Traceback (most recent call last):
    refiner.errors.SettingError: round = 0: expected an integer ≥ 1
    """

    step: str
    round: int = 1
    clients: tuple[int, ...] = ()
    """For `advertise`: who is asked to take part."""
    size: int = 1
    """For `advertise`: the length of a move."""
    order: bytes = b""
    """For `advertise`: the digest of the order that comes with `mask`."""

    def __post_init__(self) -> None:
        checks.choice("step", self.step, (INTRODUCE, *STEPS))
        checks.integer("round", self.round, 1)
        checks.integer("size", self.size, 1)
        if self.step == "advertise" and len(self.order) != DIGEST_BYTES:
            raise checks.wrong("order", self.order, f"{DIGEST_BYTES} bytes, the digest of an order")

    def content(self, message: Mapping[str, bytes] | None = None) -> RecordDict:
        """As a message holds it."""
        record = ConfigRecord({"step": self.step, "round": self.round, "size": self.size})
        record["clients"], record["order"] = ids_to_bytes(self.clients), self.order
        return RecordDict({_ASK: record, _MESSAGE: ConfigRecord(dict(message or {}))})

    @classmethod
    def read(cls, content: RecordDict) -> "Ask":
        """What a message asks; another kind of order is refused."""
        held = content.get(_ASK)
        known = [field.name for field in fields(cls)]
        if not isinstance(held, ConfigRecord) or set(held) != set(known):
            raise DataError("order: expected a step of secure aggregation; nothing else is answered here")
        step, round, clients, size, order = (held[name] for name in known)
        if not isinstance(clients, bytes):
            raise checks.wrong("clients", clients, "ids as bytes")
        if not isinstance(order, bytes):
            raise checks.wrong("order", order, "a digest as bytes")
        whole = checks.integer("round", round, 1), ids_from_bytes(clients), checks.integer("size", size, 1)
        return cls(checks.choice("step", step, (INTRODUCE, *STEPS)), *whole, order)


def to_records(message: Mapping[str, bytes]) -> RecordDict:
    """A client's answer; the masked vector travels as an array, as Flower sends those in parts."""
    small = ConfigRecord({name: value for name, value in message.items() if name != _MASKED})
    content = RecordDict({_MESSAGE: small})
    if _MASKED in message:
        whole = np.frombuffer(message[_MASKED], dtype=np.uint8)
        content[_MASKED] = ArrayRecord({_MASKED: Array(whole)})
    return content


def from_records(content: RecordDict, most: int = 0) -> dict[str, bytes]:
    """The protocol's message in a message of Flower; its masked vector has at most `most` bytes.

    >>> from_records(to_records({"step": b"mask", "masked": b"12345"}), most=5)
    {'step': b'mask', 'masked': b'12345'}
    >>> from_records(to_records({"masked": bytes(9000)}), most=5)
    Traceback (most recent call last):
    refiner.errors.DataError: masked: 'uint8' of 9128 bytes, expected uint8 [5] or fewer
    """
    record = content.get(_MESSAGE)
    if not isinstance(record, ConfigRecord):
        raise DataError("message: missing")
    message: dict[str, bytes] = {}
    for name, value in record.items():
        if not isinstance(value, bytes) or name == _MASKED:
            raise DataError(f"message: {name[:40]!r} is not one of its fields, which are bytes")
        message[name] = value
    if _MASKED in content:
        message[_MASKED] = _vector(content[_MASKED], most)
    return message


def _vector(record: object, most: int) -> bytes:
    if not isinstance(record, ArrayRecord) or set(record) != {_MASKED}:
        raise DataError("masked: expected one array")
    array = record[_MASKED]
    # Before it is unpacked: what it says of itself, and how long it is.
    if array.dtype != "uint8" or len(array.data) > most + _HEADER:
        raise DataError(
            f"masked: {array.dtype[:20]!r} of {len(array.data)} bytes, expected uint8 [{most}] or fewer"
        )
    try:
        found = array.numpy()
    except Exception as error:  # whatever a stranger put there
        raise DataError("masked: unreadable") from error
    if found.ndim != 1 or found.dtype != np.uint8:
        raise DataError(f"masked: {found.dtype} {list(found.shape)}, expected uint8 [{most}]")
    return found.tobytes()
