"""The messages of secure aggregation as Flower's records."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from refiner import checks
from refiner.errors import DataError, RefinerError
from refiner.federation.flower.messages import RefusedRequest
from refiner.federation.flower.received_array import read_array, wrong_array
from refiner.federation.secure import STEPS
from refiner.federation.secure.messages import ids_from_bytes, ids_to_bytes
from refiner.federation.secure.primitives import DIGEST_BYTES

INTRODUCE = "introduce"
"""Sent once to every node, before the steps of a round: which client is it?"""

_REQUEST, _MESSAGE, _MASKED = "request", "message", "masked"


@dataclass(frozen=True)
class StepRequest:
    """A server's request for one step of secure aggregation; the protocol's own message goes with it.

    Args:
        step: `introduce` or a step of the protocol.
        round: Number of the round, from 1.
        clients: For `advertise`: ids of the clients that are asked to take part.
        size: For `advertise`: number of values of an update.
        instructions_digest: For `advertise`: digest of the training instructions that come with `mask`.

    Raises:
        SettingError: If a value has the wrong type or lies outside its range.

    >>> StepRequest("mask", 0)
    Traceback (most recent call last):
    refiner.errors.SettingError: round = 0: expected an integer ≥ 1
    """

    step: str
    round: int = 1
    clients: tuple[int, ...] = ()
    size: int = 1
    instructions_digest: bytes = b""

    def __post_init__(self) -> None:
        checks.choice("step", self.step, (INTRODUCE, *STEPS))
        checks.integer("round", self.round, 1)
        checks.integer("size", self.size, 1)
        if self.step == "advertise" and len(self.instructions_digest) != DIGEST_BYTES:
            raise checks.wrong("instructions_digest", self.instructions_digest, f"{DIGEST_BYTES} bytes")

    def content(self, message: Mapping[str, bytes] | None = None) -> RecordDict:
        """The content of a Flower message with this request and a message of the protocol."""
        record = ConfigRecord({"step": self.step, "round": self.round, "size": self.size})
        record["clients"] = ids_to_bytes(self.clients)
        record["instructions_digest"] = self.instructions_digest
        return RecordDict({_REQUEST: record, _MESSAGE: ConfigRecord(dict(message or {}))})

    @classmethod
    def read(cls, content: RecordDict) -> "StepRequest":
        """The request in a Flower message; any other kind of message raises."""
        record = content.get(_REQUEST)
        names = [field.name for field in fields(cls)]
        if not isinstance(record, ConfigRecord) or set(record) != set(names):
            raise DataError(
                "request: expected a step of secure aggregation, the only kind that this client answers",
                field="request",
                value=type(record).__name__,
                expected="a step of secure aggregation",
            )
        step, round, clients, size, digest = (record[name] for name in names)
        if not isinstance(clients, bytes):
            raise checks.wrong("clients", clients, "ids as bytes")
        if not isinstance(digest, bytes):
            raise checks.wrong("instructions_digest", digest, f"{DIGEST_BYTES} bytes")
        return cls(
            checks.choice("step", step, (INTRODUCE, *STEPS)),
            checks.integer("round", round, 1),
            ids_from_bytes(clients),
            checks.integer("size", size, 1),
            digest,
        )


def received_request(content: RecordDict) -> StepRequest:
    """The request that a client received; a wrong one is refused."""
    try:
        return StepRequest.read(content)
    except RefinerError as error:
        raise RefusedRequest(str(error)) from error


def to_records(message: Mapping[str, bytes]) -> RecordDict:
    """A message of the protocol as records; the masked update is an array, which Flower sends in chunks."""
    small = ConfigRecord({name: value for name, value in message.items() if name != _MASKED})
    content = RecordDict({_MESSAGE: small})
    if _MASKED in message:
        vector = np.frombuffer(message[_MASKED], dtype=np.uint8)
        content[_MASKED] = ArrayRecord({_MASKED: Array(vector)})
    return content


def from_records(content: RecordDict, max_bytes: int = 0) -> dict[str, bytes]:
    """The protocol's message in a Flower message, after validation.

    Args:
        content: The content of the Flower message.
        max_bytes: The largest length of a masked update.

    >>> from_records(to_records({"step": b"mask", "masked": b"12345"}), max_bytes=5)
    {'step': b'mask', 'masked': b'12345'}
    >>> from_records(to_records({"masked": bytes(9000)}), max_bytes=5)
    Traceback (most recent call last):
    refiner.errors.DataError: masked: 'uint8' of 9128 bytes, expected uint8 [5] or fewer
    """
    record = content.get(_MESSAGE)
    if not isinstance(record, ConfigRecord):
        raise DataError(
            "message: missing", field="message", value=type(record).__name__, expected="a ConfigRecord"
        )
    message: dict[str, bytes] = {}
    for name, value in record.items():
        if not isinstance(value, bytes) or name == _MASKED:
            raise DataError(
                f"message: {name[:40]!r} is not one of its fields, which are bytes",
                field="message",
                value=name[:40],
                expected="fields of bytes",
            )
        message[name] = value
    if _MASKED in content:
        message[_MASKED] = _masked_bytes(content[_MASKED], max_bytes)
    return message


def _masked_bytes(record: object, max_bytes: int) -> bytes:
    if not isinstance(record, ArrayRecord) or set(record) != {_MASKED}:
        raise DataError(
            "masked: expected one array", field=_MASKED, value=type(record).__name__, expected="one array"
        )
    expected = f"uint8 [{max_bytes}] or fewer"
    values = read_array(_MASKED, record[_MASKED], "uint8", max_bytes, expected)
    if values.ndim != 1:
        raise wrong_array(_MASKED, f"{values.dtype} {list(values.shape)}", expected)
    return values.tobytes()
