"""A client's side of one round: five steps, each once and in order; if one is refused, it is out."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Self

import numpy as np
from torch import Tensor

from refiner import checks
from refiner.errors import DataError
from refiner.federation.secure import primitives
from refiner.federation.secure.client_state import DONE, LEFT, Holding
from refiner.federation.secure.errors import AggregationError
from refiner.federation.secure.identity import Identity
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
    ids_from_bytes,
    ids_to_bytes,
    story,
    transcript,
)
from refiner.federation.secure.primitives import SHARE_BYTES, SIGNATURE_BYTES
from refiner.federation.secure.round_config import Agreement


class SecureClient:
    """One client in one round; made anew for every round, with fresh keys.

    A step that is refused ends the round for this client: its secrets are dropped, later steps are refused.

    >>> identities = {client: Identity.generate() for client in (1, 2, 3)}
    >>> known = {client: identity.public for client, identity in identities.items()}
    >>> client = SecureClient(Agreement("training 7", 1, known, size=4), 2, identities[2])
    >>> sorted(client.advertise())
    ['advert', 'context', 'step']
    >>> client.unmask({})
    Traceback (most recent call last):
    refiner.federation.secure.errors.AggregationError: client 2: asked for unmask, but its next step is share
    """

    def __init__(
        self, agreement: Agreement, client: int, identity: Identity, *, after: int | None = None
    ) -> None:
        """Begin a round later than `after`, the last one of this session that this client began.

        Once again the same round is refused: one update in two sums of different clients tells too much.
        """
        if after is not None and agreement.round <= checks.integer("after", after, 0):
            raise AggregationError(
                f"round {agreement.round}: client {client} has begun round {after} already"
            )
        if client not in agreement.identities:
            raise checks.wrong("client", client, f"one of {', '.join(map(str, agreement.identities))}")
        if identity.public != agreement.identities[client]:
            raise checks.wrong("identity", identity, f"the key that the agreement has of client {client}")
        self.agreement, self.client = agreement, client
        self._identity = identity
        self._held = Holding()

    @property
    def step(self) -> str:
        """What it can be asked for next; `done` after the last, `left` after a refusal."""
        return self._held.step

    def advertise(self) -> dict[str, bytes]:
        """This client's public keys of the round, signed."""
        with self._during("advertise"):
            return self._message("advertise", {"advert": self._advert().to_bytes()})

    def share(self, message: Message) -> dict[str, bytes]:
        """Given every client's public keys, shares of this one's secrets, sealed for each of them."""
        with self._during("share"):
            known, context = self.agreement.identities, self.agreement.context
            raw = by_client(self._fields(message, "share"), "advert", known, ADVERT_BYTES)
            adverts = {other: Advert.read(text, context, other, known[other]) for other, text in raw.items()}
            self._enough("adverts", adverts)
            if adverts.get(self.client) != self._advert():
                raise AggregationError(f"adverts: that of client {self.client} itself is missing or changed")
            keys = [key for advert in adverts.values() for key in (advert.sealing, advert.masking)]
            if len(set(keys)) < len(keys):
                raise AggregationError("adverts: the same public key twice")
            self._held.adverts = adverts
            _, masking, seed = self._held.secrets
            needed, places = self.agreement.needed, len(adverts)
            made = (primitives.split(masking, needed, places), primitives.split(seed, needed, places))
            shares = dict(zip(adverts, zip(*made, strict=True), strict=True))
            self._held.shares = {self.client: shares.pop(self.client)}
            about = transcript(context, adverts)
            return self._message(
                "share",
                {
                    f"to:{other}": primitives.seal(
                        self._sealing_key(self.client, other), key + seed, about, self.client, other
                    )
                    for other, (key, seed) in shares.items()
                },
            )

    def mask(self, update: Tensor, message: Message, weight: int = 1) -> dict[str, bytes]:
        """Given what the others sealed for this client: its update `[N]` times its weight, masked."""
        with self._during("mask"):
            agreement, adverts = self.agreement, self._held.adverts
            checks.integer("weight", weight, 1, agreement.max_weight)
            others = [other for other in adverts if other != self.client]
            sealed = by_client(self._fields(message, "mask"), "from", others, SEALED_BYTES)
            self._enough("clients that shared", [self.client, *sealed])
            # All shares are opened before anything masked leaves: later it would be too late to refuse.
            self._held.shares |= {other: self._open(other, text) for other, text in sealed.items()}
            if not isinstance(update, Tensor) or update.shape != (agreement.size,):
                raise DataError(f"update: expected a tensor of shape [{agreement.size}]; nothing leaves")
            values = agreement.encoding.encode(update, weight)
            vector = np.append(values, np.array([weight], dtype=values.dtype))
            _, masking, seed = self._held.secrets
            add_mask(vector, self_key(agreement.context, self.client, seed))
            for other in sealed:
                key = pair_key(agreement.context, masking, self.client, other, adverts[other].masking)
                add_pair_mask(vector, key, self.client, other)
            return self._message("mask", {"masked": vector.tobytes()})

    def confirm(self, message: Message) -> dict[str, bytes]:
        """Given who survived: this client's signature of it, so that the server can tell only one story."""
        with self._during("confirm"):
            fields = self._fields(message, "confirm")
            if set(fields) != {"survivors"}:
                raise AggregationError("confirm message: expected survivors and no other field")
            survivors = ids_from_bytes(fields["survivors"])
            if not {self.client} <= set(survivors) <= set(self._held.shares):
                raise AggregationError(
                    f"survivors: expected clients that shared, client {self.client} among them"
                )
            self._enough("survivors", survivors)
            self._held.survivors = survivors
            return self._message("confirm", {"signature": self._identity.sign(*self._story())})

    def unmask(self, message: Message) -> dict[str, bytes]:
        """Given t signatures of the same survivors: one share of each client, of its seed or its mask key."""
        with self._during("unmask"):
            fields, survivors = self._fields(message, "unmask"), self._held.survivors
            if fields.pop("survivors", None) != ids_to_bytes(survivors):
                raise AggregationError("survivors: not those that this client signed; no share is revealed")
            signatures = by_client(fields, "signature", survivors, SIGNATURE_BYTES)
            self._enough("signatures of survivors", signatures)
            told = self._story()
            for other, signature in signatures.items():
                if not primitives.signed_by(self.agreement.identities[other], signature, *told):
                    raise AggregationError(
                        f"signature of client {other}: not of these survivors; no share is revealed"
                    )
            # Of each client the one or the other, and never a second time: both would lift all of its masks.
            revealed = {}
            for other, (key, seed) in self._held.shares.items():
                if other in survivors:
                    revealed[f"seed:{other}"] = seed
                else:
                    revealed[f"key:{other}"] = key
            return self._message("unmask", revealed)

    def state(self) -> bytes:
        """Its secrets and where it stands, to go on in another process on the same machine; never to be sent.

        To be kept before the step's answer is sent, in the place of the one before: a client that is put back
        to an older state could be asked for the other share of the same secrets.
        """
        return self._held.to_bytes(self.agreement, self.client)

    @classmethod
    def restore(cls, agreement: Agreement, client: int, identity: Identity, state: bytes) -> Self:
        """The client that `state` was taken of.

        >>> identities = {client: Identity.generate() for client in (1, 2)}
        >>> known = {client: identity.public for client, identity in identities.items()}
        >>> agreement = Agreement("training 7", 1, known, size=4)
        >>> client = SecureClient(agreement, 1, identities[1])
        >>> advert = client.advertise()
        >>> SecureClient.restore(agreement, 1, identities[1], client.state()).step
        'share'
        """
        made = cls(agreement, client, identity)
        made._held = Holding.from_bytes(state, agreement, client)
        return made

    @contextmanager
    def _during(self, step: str) -> Iterator[None]:
        held = self._held
        if held.step != step:
            stands = "it has left the round" if held.step == LEFT else f"its next step is {held.step}"
            raise AggregationError(f"client {self.client}: asked for {step}, but {stands}")
        # Out of the round until the step has succeeded: whatever goes wrong in it, there is no way on.
        held.step = LEFT
        try:
            yield
        except BaseException:
            held.forget()
            raise
        held.step = (*STEPS, DONE)[STEPS.index(step) + 1]
        if held.step == DONE:
            held.forget()

    def _fields(self, message: Message, step: str) -> dict[str, bytes]:
        return fields_of(message, step, self.agreement.context)

    def _message(self, step: str, fields: dict[str, bytes]) -> dict[str, bytes]:
        return compose(step, self.agreement.context, fields)

    def _enough(self, what: str, clients: Collection[int]) -> None:
        needed = self.agreement.needed
        if len(clients) < needed:
            raise AggregationError(f"{what}: {len(clients)}, expected {needed} or more; nothing leaves")

    def _advert(self) -> Advert:
        (sealing, masking, seed), context = self._held.secrets, self.agreement.context
        keys = primitives.public_key(sealing), primitives.public_key(masking)
        return Advert.signed(
            self._identity.sign, context, self.client, *keys, commitment(context, self.client, seed)
        )

    def _sealing_key(self, sender: int, recipient: int) -> bytes:
        other = sender if recipient == self.client else recipient
        secret, public = self._held.secrets[0], self._held.adverts[other].sealing
        return primitives.agree(secret, public, self.agreement.context, "shares", sender, recipient)

    def _open(self, sender: int, sealed: bytes) -> tuple[bytes, bytes]:
        about = transcript(self.agreement.context, self._held.adverts)
        text = primitives.unseal(self._sealing_key(sender, self.client), sealed, about, sender, self.client)
        if text is None or len(text) != 2 * SHARE_BYTES:
            raise AggregationError(f"shares of client {sender}: changed on the way, or of other keys")
        pair = text[:SHARE_BYTES], text[SHARE_BYTES:]
        # The place is the share's own word; a wrong one would spoil the secret when shares are joined.
        place = sorted(self._held.adverts).index(self.client) + 1
        if any(primitives.place_of(share) != place for share in pair):
            raise AggregationError(f"shares of client {sender}: made for another place than {place}")
        return pair

    def _story(self) -> tuple[str | bytes, ...]:
        told = transcript(self.agreement.context, self._held.adverts)
        return story(told, self._held.shares, self._held.survivors)
