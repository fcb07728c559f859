"""Messages as plain dicts of bytes, for any transport, and the checks of everything read from one.

| step | client → server | server → client |
|---|---|---|
| advertise | `advert`: two public keys, a commitment, their signature | |
| share | `to:ID`: two shares, encrypted for client ID | `advert:ID` of every client |
| mask | `masked`: the masked update | `from:ID`: the shares that client ID encrypted for this client |
| confirm | `signature` of the survivors | `survivors`: ids, 8 bytes each |
| unmask | `seed:ID` or `key:ID`: one share of client ID | `survivors`, and `signature:ID` of t or more |

Every message also has its `step` and the `context` of the round. The steps are the rounds of Bonawitz et al.
(2017): AdvertiseKeys, ShareKeys, MaskedInputCollection, ConsistencyCheck and Unmasking.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from refiner.errors import Description
from refiner.federation.secure.errors import AggregationError
from refiner.federation.secure.primitives import (
    ENCRYPTION_OVERHEAD,
    SIGNATURE_BYTES,
    digest,
    verify_signature,
)
from refiner.federation.secure.secret_sharing import SHARE_BYTES

Message = Mapping[str, bytes]
"""What one side sends to the other."""
Sign = Callable[..., bytes]
STEPS = ("advertise", "share", "mask", "confirm", "unmask")
"""The steps of a round in their order, as named in messages."""

_KEY_BYTES = 32
ADVERTISEMENT_BYTES = 3 * _KEY_BYTES + SIGNATURE_BYTES
ENCRYPTED_SHARES_BYTES = 2 * SHARE_BYTES + ENCRYPTION_OVERHEAD


@dataclass(frozen=True)
class KeyAdvertisement:
    """A client's public keys for one round, signed with its identity key."""

    encryption_key: bytes
    """X25519: shares for this client are encrypted with it."""
    masking_key: bytes
    """X25519: pairwise masks with the other clients are derived from it."""
    commitment: bytes
    """Commitment to the self-mask seed, so that wrong shares of it are detected."""
    signature: bytes

    @classmethod
    def create(
        cls,
        sign: Sign,
        context: bytes,
        client: int,
        encryption_key: bytes,
        masking_key: bytes,
        commitment: bytes,
    ) -> "KeyAdvertisement":
        """Sign these keys for this round and client."""
        signature = sign("advert", context, client, encryption_key, masking_key, commitment)
        return cls(encryption_key, masking_key, commitment, signature)

    def to_bytes(self) -> bytes:
        """The advertisement as it is sent."""
        return self.encryption_key + self.masking_key + self.commitment + self.signature

    @classmethod
    def from_bytes(cls, raw: bytes, context: bytes, client: int, identity: bytes) -> "KeyAdvertisement":
        """Parse an advertisement and verify that this client signed it for this round."""
        if len(raw) != ADVERTISEMENT_BYTES:
            raise _wrong_length(f"key advertisement of client {client}", raw, ADVERTISEMENT_BYTES)
        advertisement = cls(
            raw[:_KEY_BYTES],
            raw[_KEY_BYTES : 2 * _KEY_BYTES],
            raw[2 * _KEY_BYTES : 3 * _KEY_BYTES],
            raw[3 * _KEY_BYTES :],
        )
        signed = advertisement.encryption_key, advertisement.masking_key, advertisement.commitment
        if not verify_signature(identity, advertisement.signature, "advert", context, client, *signed):
            raise AggregationError(
                f"key advertisement of client {client}: not signed by it for this round; "
                "its keys may have been replaced"
            )
        return advertisement


def keys_digest(context: bytes, advertisements: Mapping[int, KeyAdvertisement]) -> bytes:
    """Digest of all advertised keys: clients that were shown different keys reject each other's shares."""
    parts = [
        part for client in sorted(advertisements) for part in (client, advertisements[client].to_bytes())
    ]
    return digest("transcript", context, *parts)


def survivors_statement(
    keys: bytes, shared: Iterable[int], survivors: Iterable[int]
) -> tuple[str | bytes, bytes, bytes, bytes]:
    """What survivors sign: the digest of the keys, who shared them, and who sent a masked update."""
    return "survivors", keys, ids_to_bytes(shared), ids_to_bytes(survivors)


def make_message(step: str, context: bytes, fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """A message of this step and round."""
    return {"step": step.encode(), "context": context, **fields}


def message_fields(message: object, step: str, context: bytes) -> dict[str, bytes]:
    """Check that a message is of this step and round; returns its fields without `step` and `context`.

    >>> message_fields({"step": b"mask", "context": b"1"}, "mask", b"2")
    Traceback (most recent call last):
    refiner.federation.secure.errors.AggregationError: mask message: of another session, round, ...
    """
    if not isinstance(message, Mapping):
        raise AggregationError(f"{step} message: {type(message).__name__}, expected a dict of bytes")
    for name, value in message.items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise AggregationError(f"{step} message: expected names as strings and values as bytes")
    if message.get("step") != step.encode():
        raise AggregationError(f"{step} message: of another step")
    if message.get("context") != context:
        raise AggregationError(f"{step} message: of another session, round, instructions or settings")
    return {name: value for name, value in message.items() if name not in ("step", "context")}


def only_field(fields: Mapping[str, bytes], name: str, length: int) -> bytes:
    """The value of the field `name` of this length; raises if there is any other field."""
    if set(fields) != {name}:
        raise AggregationError(f"message: expected {name} and no other field")
    if len(fields[name]) != length:
        raise _wrong_length(name, fields[name], length)
    return fields[name]


def fields_by_client(
    fields: Mapping[str, bytes], kind: str, clients: Iterable[int], length: int
) -> dict[int, bytes]:
    """The fields `kind:ID` by client id; raises on another field, client or length."""
    names = {f"{kind}:{client}": client for client in clients}
    values = {}
    for name, value in fields.items():
        if name not in names:
            raise AggregationError(
                f"field {name[:40]!r}: expected {kind}:ID of a client that is in the round"
            )
        if len(value) != length:
            raise _wrong_length(name, value, length)
        values[names[name]] = value
    return dict(sorted(values.items()))


def ids_to_bytes(clients: Iterable[int]) -> bytes:
    """Client ids as they are sent, in increasing order.

    >>> ids_from_bytes(ids_to_bytes([3, 1]))
    (1, 3)
    """
    return b"".join(client.to_bytes(8, "big") for client in sorted(clients))


def ids_from_bytes(raw: bytes) -> tuple[int, ...]:
    """Parse client ids, which must be increasing."""
    ids = tuple(int.from_bytes(raw[start : start + 8], "big") for start in range(0, len(raw), 8))
    if len(raw) % 8 or list(ids) != sorted(set(ids)):
        raise AggregationError("survivors: expected ids of 8 bytes in increasing order, without duplicates")
    return ids


def _wrong_length(name: str, raw: bytes, length: int) -> AggregationError:
    return AggregationError(
        f"{name}: {len(raw)} bytes, expected {length}",
        field=name,
        value=Description(f"{len(raw)} bytes"),
        expected=f"{length} bytes",
    )
