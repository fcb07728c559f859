"""Messages as plain dicts of bytes, for any transport; and all that is read from one, checked.

| step | client → server | server → client |
|---|---|---|
| advertise | `advert`: two public keys, a commitment, their signature | |
| share | `to:ID`: two shares, sealed for ID | `advert:ID` of every client |
| mask | `masked`: the masked vector | `from:ID`: what ID sealed for this client |
| confirm | `signature` of who survived | `survivors`: ids, 8 bytes each |
| unmask | `seed:ID` or `key:ID`: one share of ID, never both | `survivors`, and `signature:ID` of t or more |

Every message also has its `step` and the `context` of the round.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from refiner.federation.secure.errors import AggregationError
from refiner.federation.secure.primitives import (
    SEALED_MORE,
    SHARE_BYTES,
    SIGNATURE_BYTES,
    digest,
    signed_by,
)

Message = Mapping[str, bytes]
Sign = Callable[..., bytes]
STEPS = ("advertise", "share", "mask", "confirm", "unmask")
"""What a client is asked for, in this order."""

_KEY = 32
ADVERT_BYTES = 3 * _KEY + SIGNATURE_BYTES
SEALED_BYTES = 2 * SHARE_BYTES + SEALED_MORE


@dataclass(frozen=True)
class Advert:
    """A client's public keys of one round."""

    sealing: bytes
    """X25519: shares for this client are sealed with it."""
    masking: bytes
    """X25519: masks with the other clients come from it."""
    commitment: bytes
    """To the self-mask's seed, so that wrong shares of it are noticed."""
    signature: bytes

    @classmethod
    def signed(
        cls, sign: Sign, context: bytes, client: int, sealing: bytes, masking: bytes, commitment: bytes
    ) -> "Advert":
        """One of these keys, signed for this round and client."""
        signature = sign("advert", context, client, sealing, masking, commitment)
        return cls(sealing, masking, commitment, signature)

    def to_bytes(self) -> bytes:
        """As it travels."""
        return self.sealing + self.masking + self.commitment + self.signature

    @classmethod
    def read(cls, raw: bytes, context: bytes, client: int, identity: bytes) -> "Advert":
        """Read one and check that this client made it for this round."""
        if len(raw) != ADVERT_BYTES:
            raise AggregationError(f"advert of client {client}: {len(raw)} bytes, expected {ADVERT_BYTES}")
        advert = cls(raw[:_KEY], raw[_KEY : 2 * _KEY], raw[2 * _KEY : 3 * _KEY], raw[3 * _KEY :])
        keys = (advert.sealing, advert.masking, advert.commitment)
        if not signed_by(identity, advert.signature, "advert", context, client, *keys):
            raise AggregationError(
                f"advert of client {client}: not signed by it for this round; its keys may have been swapped"
            )
        return advert


def transcript(context: bytes, adverts: Mapping[int, Advert]) -> bytes:
    """A digest of all keys: whoever was shown other ones can't go on with the rest."""
    rows = [part for client in sorted(adverts) for part in (client, adverts[client].to_bytes())]
    return digest("transcript", context, *rows)


def story(
    keys: bytes, shared: Iterable[int], survivors: Iterable[int]
) -> tuple[str | bytes, bytes, bytes, bytes]:
    """What survivors sign: the transcript of the keys, who shared, and who of them survived."""
    return "survivors", keys, ids_to_bytes(shared), ids_to_bytes(survivors)


def compose(step: str, context: bytes, fields: Mapping[str, bytes]) -> dict[str, bytes]:
    """A message."""
    return {"step": step.encode(), "context": context, **fields}


def fields_of(message: object, step: str, context: bytes) -> dict[str, bytes]:
    """The fields of a message of this step and round, without those two.

    >>> fields_of({"step": b"mask", "context": b"1"}, "mask", b"2")
    Traceback (most recent call last):
    refiner.federation.secure.errors.AggregationError: mask message: of another session, round, order ...
    """
    if not isinstance(message, Mapping):
        raise AggregationError(f"{step} message: {type(message).__name__}, expected a dict of bytes")
    for name, value in message.items():
        if not isinstance(name, str) or not isinstance(value, bytes):
            raise AggregationError(f"{step} message: expected text names and bytes only")
    if message.get("step") != step.encode():
        raise AggregationError(f"{step} message: of another step")
    if message.get("context") != context:
        raise AggregationError(f"{step} message: of another session, round, order or settings")
    return {name: value for name, value in message.items() if name not in ("step", "context")}


def single(fields: Mapping[str, bytes], name: str, length: int) -> bytes:
    """The one field of a message, of this length."""
    if set(fields) != {name}:
        raise AggregationError(f"message: expected {name} and no other field")
    if len(fields[name]) != length:
        raise AggregationError(f"{name}: {len(fields[name])} bytes, expected {length}")
    return fields[name]


def by_client(fields: Mapping[str, bytes], kind: str, known: Iterable[int], length: int) -> dict[int, bytes]:
    """Fields `kind:ID` by id, each of a known client and of this length; another field is refused."""
    names = {f"{kind}:{client}": client for client in known}
    found = {}
    for name, value in fields.items():
        if name not in names:
            raise AggregationError(
                f"field {name[:40]!r}: expected {kind}:ID of a client that is in the round"
            )
        if len(value) != length:
            raise AggregationError(f"{name}: {len(value)} bytes, expected {length}")
        found[names[name]] = value
    return dict(sorted(found.items()))


def ids_to_bytes(clients: Iterable[int]) -> bytes:
    """Ids as they travel, in rising order.

    >>> ids_from_bytes(ids_to_bytes([3, 1]))
    (1, 3)
    """
    return b"".join(client.to_bytes(8, "big") for client in sorted(clients))


def ids_from_bytes(raw: bytes) -> tuple[int, ...]:
    """Ids in rising order, none twice."""
    ids = tuple(int.from_bytes(raw[at : at + 8], "big") for at in range(0, len(raw), 8))
    if len(raw) % 8 or list(ids) != sorted(set(ids)):
        raise AggregationError("survivors: expected ids of 8 bytes, in rising order, none twice")
    return ids
