"""The server's side of one round: it relays, adds up what is masked, and lifts the masks of the sum."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from torch import Tensor

from refiner.federation.secure import primitives
from refiner.federation.secure.errors import AggregationError
from refiner.federation.secure.fixedpoint import Ring
from refiner.federation.secure.masks import add_mask, add_pair_mask, commitment, pair_key, self_key
from refiner.federation.secure.messages import (
    ADVERT_BYTES,
    SEALED_BYTES,
    STEPS,
    Advert,
    Message,
    by_client,
    compose,
    fields_of,
    ids_to_bytes,
    single,
    story,
    transcript,
)
from refiner.federation.secure.primitives import SHARE_BYTES, SIGNATURE_BYTES
from refiner.federation.secure.round_config import Agreement

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Aggregate:
    """What the server learns of a round: the weighted mean, and nothing of a single client."""

    mean: Tensor
    """`[N]`, float64."""
    weight: int
    """The sum of the weights."""
    clients: tuple[int, ...]
    """Whose updates are in it."""


class SecureServer:
    """One round; each step takes the clients' answers by id and gives what is to be sent next.

    A client that does not answer, or whose answer is refused (`refused` says why), is out; the others go on
    as long as t of them stay. Fewer end the round with an error, and then no mask can be lifted.

    >>> from refiner.federation.secure import Identity
    >>> known = {client: Identity.generate().public for client in (1, 2, 3)}
    >>> SecureServer(Agreement("training 7", 1, known, size=4)).keys({})
    Traceback (most recent call last):
    refiner.federation.secure.errors.AggregationError: advertise: 0 of 3 clients answered, expected 3 or more
    """

    def __init__(self, agreement: Agreement) -> None:
        self.agreement = agreement
        self.refused: dict[int, str] = {}
        """Clients whose answers were refused, and why."""
        self._step: str = STEPS[0]
        self._adverts: dict[int, Advert] = {}
        self._shared: tuple[int, ...] = ()
        self._survivors: tuple[int, ...] = ()
        self._signed: tuple[int, ...] = ()
        self._total: Ring = np.zeros(0, dtype=agreement.encoding.dtype)

    def keys(self, answers: Mapping[int, Message]) -> dict[str, bytes]:
        """Of all adverts, the message that every client in it is asked to `share` with."""
        known, context = self.agreement.identities, self.agreement.context

        def read(client: int, fields: dict[str, bytes]) -> Advert:
            raw = single(fields, "advert", ADVERT_BYTES)
            return Advert.read(raw, context, client, known[client])

        self._adverts = self._gather("advertise", known, answers, read)
        adverts = {f"advert:{client}": advert.to_bytes() for client, advert in self._adverts.items()}
        return compose("share", context, adverts)

    def relay(self, answers: Mapping[int, Message]) -> dict[int, dict[str, bytes]]:
        """Of all sealed shares, by client the message that it is asked to `mask` with."""

        def read(client: int, fields: dict[str, bytes]) -> dict[int, bytes]:
            others = self._adverts.keys() - {client}
            sealed = by_client(fields, "to", others, SEALED_BYTES)
            if sealed.keys() != others:
                raise AggregationError(f"shares of client {client}: not one for every other client")
            return sealed

        sealed = self._gather("share", self._adverts, answers, read)
        self._shared = tuple(sealed)
        context = self.agreement.context
        return {
            client: compose(
                "mask",
                context,
                {f"from:{other}": sealed[other][client] for other in sealed if other != client},
            )
            for client in sealed
        }

    def survivors(self, answers: Mapping[int, Message]) -> dict[str, bytes]:
        """Of all masked vectors, the message that every survivor is asked to `confirm`; the sum is kept."""
        dtype, length = self.agreement.encoding.dtype, self.agreement.size + 1

        def read(client: int, fields: dict[str, bytes]) -> Ring:
            raw = single(fields, "masked", length * dtype.itemsize)
            vector: Ring = np.frombuffer(raw, dtype=dtype)
            return vector

        masked = self._gather("mask", self._shared, answers, read)
        self._survivors = tuple(masked)
        self._total = np.zeros(length, dtype=dtype)
        for vector in masked.values():
            np.add(self._total, vector, out=self._total)
        return compose("confirm", self.agreement.context, {"survivors": ids_to_bytes(masked)})

    def signatures(self, answers: Mapping[int, Message]) -> dict[str, bytes]:
        """Of all signatures of the survivors, the message that every signer is asked to `unmask` with."""
        known, context = self.agreement.identities, self.agreement.context
        told = story(transcript(context, self._adverts), self._shared, self._survivors)

        def read(client: int, fields: dict[str, bytes]) -> bytes:
            signature = single(fields, "signature", SIGNATURE_BYTES)
            if not primitives.signed_by(known[client], signature, *told):
                raise AggregationError(f"signature of client {client}: not of these survivors")
            return signature

        signatures = self._gather("confirm", self._survivors, answers, read)
        self._signed = tuple(signatures)
        fields = {f"signature:{client}": signature for client, signature in signatures.items()}
        survivors = {"survivors": ids_to_bytes(self._survivors)}
        return compose("unmask", context, survivors | fields)

    def aggregate(self, answers: Mapping[int, Message]) -> Aggregate:
        """Of all shares, the mean."""
        kinds = {c: "seed" if c in self._survivors else "key" for c in self._shared}
        wanted = {f"{kind}:{client}" for client, kind in kinds.items()}
        places = {client: place for place, client in enumerate(self._adverts, start=1)}

        def read(client: int, fields: dict[str, bytes]) -> dict[str, bytes]:
            if fields.keys() != wanted or any(len(share) != SHARE_BYTES for share in fields.values()):
                raise AggregationError(f"shares from client {client}: not one of every client")
            if any(primitives.place_of(share) != places[client] for share in fields.values()):
                raise AggregationError(f"shares from client {client}: of another place")
            return fields

        shares = list(self._gather("unmask", self._signed, answers, read).values())
        context = self.agreement.context
        total = self._total.copy()
        for client in self._survivors:
            seed = self._joined(shares, "seed", client)
            if commitment(context, client, seed) != self._adverts[client].commitment:
                raise _unfit("seed", client)
            add_mask(total, self_key(context, client, seed), subtract=True)
        for client in self._shared:
            if client in self._survivors:
                continue
            secret = self._joined(shares, "key", client)
            if primitives.public_key(secret) != self._adverts[client].masking:
                raise _unfit("key", client)
            for other in self._survivors:
                key = pair_key(context, secret, client, other, self._adverts[other].masking)
                add_pair_mask(total, key, other, client, undo=True)
        return self._opened(total)

    def _opened(self, total: Ring) -> Aggregate:
        agreement, count = self.agreement, len(self._survivors)
        signed = agreement.encoding.signed(total)
        weight, largest = int(signed[-1]), agreement.encoding.largest(agreement.max_weight)
        # Masks that don't cancel leave numbers all over the range.
        low, high = int(signed[:-1].min()), int(signed[:-1].max())
        if not count <= weight <= count * agreement.max_weight or max(-low, high) > count * largest:
            raise AggregationError(
                "sum: more than the clients' bounds allow; a client's vector was not as agreed"
            )
        return Aggregate(agreement.encoding.decode(total[:-1], weight), weight, self._survivors)

    def _joined(self, shares: list[dict[str, bytes]], kind: str, client: int) -> bytes:
        some = [each[f"{kind}:{client}"] for each in shares[: self.agreement.needed]]
        secret = primitives.join(some)
        if secret is None:
            raise _unfit(kind, client)
        return secret

    def _gather(
        self,
        step: str,
        asked: Collection[int],
        answers: Mapping[int, Message],
        read: Callable[[int, dict[str, bytes]], T],
    ) -> dict[int, T]:
        """What `read` makes of each answer, in rising order of clients; refuses fewer than t."""
        if self._step != step:
            raise AggregationError(f"server: asked for {step}, but its next step is {self._step}")
        found = {}
        for client in sorted(answers):
            try:
                if client not in asked:
                    raise AggregationError(f"{step}: client {client} was not asked")
                found[client] = read(client, fields_of(answers[client], step, self.agreement.context))
            except AggregationError as error:
                self.refused[client] = str(error)
        self._step = "over"
        if len(found) < self.agreement.needed:
            raise AggregationError(
                f"{step}: {len(found)} of {len(asked)} clients answered, "
                f"expected {self.agreement.needed} or more"
            )
        self._step = (*STEPS, "over")[STEPS.index(step) + 1]
        return found


def _unfit(kind: str, client: int) -> AggregationError:
    return AggregationError(f"{kind} of client {client}: the shares do not give what it signed")
