"""The server's side of one round: it relays messages, sums masked updates and unmasks the sum."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
from torch import Tensor

from refiner.federation.secure import primitives
from refiner.federation.secure.errors import AggregationError, SpoiledSum
from refiner.federation.secure.fixedpoint import RingVector
from refiner.federation.secure.masks import (
    add_mask,
    add_pairwise_mask,
    pairwise_mask_key,
    seed_commitment,
    self_mask_key,
)
from refiner.federation.secure.messages import (
    ADVERTISEMENT_BYTES,
    ENCRYPTED_SHARES_BYTES,
    STEPS,
    KeyAdvertisement,
    Message,
    fields_by_client,
    ids_to_bytes,
    keys_digest,
    make_message,
    message_fields,
    only_field,
    survivors_statement,
)
from refiner.federation.secure.primitives import SIGNATURE_BYTES
from refiner.federation.secure.revealed_shares import RevealedShares
from refiner.federation.secure.round_config import RoundConfig
from refiner.federation.secure.secret_sharing import SHARE_BYTES, share_index

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The result of a round: all that the server learns about the clients' updates.

    Attributes:
        mean: The weighted mean `[N]`, float64.
        weight: The sum of the weights.
        clients: The clients whose updates are in the mean.
    """

    mean: Tensor
    weight: int
    clients: tuple[int, ...]


class SecureServer:
    """The server in one round; each method takes the clients' responses and returns the next message.

    A client that does not respond, or whose response is rejected, is out of the round; the others continue as
    long as at least t of them remain (t is the threshold). With fewer, the method raises an AggregationError,
    and the masks cannot be removed.

    Args:
        config: The round's settings.

    Attributes:
        config: The round's settings.
        rejected: The clients whose responses were rejected, each with the reason.
        survivors: The clients whose masked updates are in the sum.

    >>> from refiner.federation.secure import Identity
    >>> identities = {client: Identity.generate().public for client in (1, 2, 3)}
    >>> SecureServer(RoundConfig("training 7", 1, identities, size=4)).collect_keys({})
    Traceback (most recent call last):
    refiner.federation.secure.errors.AggregationError: advertise: 0 of 3 clients answered, expected 3 or more
    """

    def __init__(self, config: RoundConfig) -> None:
        self.config = config
        self.rejected: dict[int, str] = {}
        self._step: str = STEPS[0]
        self._advertisements: dict[int, KeyAdvertisement] = {}
        self._shared: tuple[int, ...] = ()
        self.survivors: tuple[int, ...] = ()
        self._signed: tuple[int, ...] = ()
        self._total: RingVector = np.zeros(0, dtype=config.encoding.dtype)

    def collect_keys(self, responses: Mapping[int, Message]) -> dict[str, bytes]:
        """Step 1, key advertisement.

        Args:
            responses: By client id, what `SecureClient.advertise_keys` returned.

        Returns:
            The message for `share_keys` of every client that advertised its keys.

        Raises:
            AggregationError: Fewer clients than the threshold sent a valid response.
        """
        identities, context = self.config.identities, self.config.context

        def parse(client: int, fields: dict[str, bytes]) -> KeyAdvertisement:
            raw = only_field(fields, "advert", ADVERTISEMENT_BYTES)
            return KeyAdvertisement.from_bytes(raw, context, client, identities[client])

        self._advertisements = self._collect("advertise", identities, responses, parse)
        fields = {f"advert:{client}": keys.to_bytes() for client, keys in self._advertisements.items()}
        return make_message("share", context, fields)

    def collect_shares(self, responses: Mapping[int, Message]) -> dict[int, dict[str, bytes]]:
        """Step 2, share keys.

        Args:
            responses: By client id, what `SecureClient.share_keys` returned.

        Returns:
            By client id, the message for its `mask_update`: the shares encrypted for it.

        Raises:
            AggregationError: Fewer clients than the threshold sent a valid response.
        """

        def parse(client: int, fields: dict[str, bytes]) -> dict[int, bytes]:
            others = self._advertisements.keys() - {client}
            ciphertexts = fields_by_client(fields, "to", others, ENCRYPTED_SHARES_BYTES)
            if ciphertexts.keys() != others:
                raise AggregationError(f"shares of client {client}: expected one for every other client")
            return ciphertexts

        ciphertexts = self._collect("share", self._advertisements, responses, parse)
        self._shared = tuple(ciphertexts)
        context = self.config.context
        return {
            client: make_message(
                "mask",
                context,
                {f"from:{other}": ciphertexts[other][client] for other in ciphertexts if other != client},
            )
            for client in ciphertexts
        }

    def collect_masked_updates(self, responses: Mapping[int, Message]) -> dict[str, bytes]:
        """Step 3, masked input collection: sum the masked updates.

        Args:
            responses: By client id, what `SecureClient.mask_update` returned.

        Returns:
            The message for `confirm_survivors` of every client that sent a masked update.

        Raises:
            AggregationError: Fewer clients than the threshold sent a valid response.
        """
        dtype, length = self.config.encoding.dtype, self.config.size + 1

        def parse(client: int, fields: dict[str, bytes]) -> RingVector:
            raw = only_field(fields, "masked", length * dtype.itemsize)
            vector: RingVector = np.frombuffer(raw, dtype=dtype)
            return vector

        masked = self._collect("mask", self._shared, responses, parse)
        self.survivors = tuple(masked)
        self._total = np.zeros(length, dtype=dtype)
        for vector in masked.values():
            np.add(self._total, vector, out=self._total)
        return make_message("confirm", self.config.context, {"survivors": ids_to_bytes(masked)})

    def collect_signatures(self, responses: Mapping[int, Message]) -> dict[str, bytes]:
        """Step 4, consistency check.

        Args:
            responses: By client id, what `SecureClient.confirm_survivors` returned.

        Returns:
            The message for `unmask` of every client that signed the survivors.

        Raises:
            AggregationError: Fewer clients than the threshold sent a valid response.
        """
        identities, context = self.config.identities, self.config.context
        keys = keys_digest(context, self._advertisements)
        statement = survivors_statement(keys, self._shared, self.survivors)

        def parse(client: int, fields: dict[str, bytes]) -> bytes:
            signature = only_field(fields, "signature", SIGNATURE_BYTES)
            if not primitives.verify_signature(identities[client], signature, *statement):
                raise AggregationError(f"signature of client {client}: not of these survivors")
            return signature

        signatures = self._collect("confirm", self.survivors, responses, parse)
        self._signed = tuple(signatures)
        fields = {f"signature:{client}": signature for client, signature in signatures.items()}
        survivors = {"survivors": ids_to_bytes(self.survivors)}
        return make_message("unmask", context, survivors | fields)

    def aggregate(self, responses: Mapping[int, Message]) -> Aggregate:
        """Step 5, unmasking: recover the secrets and remove the masks of the sum.

        Args:
            responses: By client id, what `SecureClient.unmask` returned.

        Returns:
            The weighted mean over the survivors.

        Raises:
            AggregationError: Fewer clients than the threshold sent a valid response.
            SpoiledSum: A secret cannot be recovered from the shares, or the sum is beyond the clients'
                bounds.
        """
        kinds = {client: "seed" if client in self.survivors else "key" for client in self._shared}
        expected = {f"{kind}:{client}" for client, kind in kinds.items()}
        indices = {client: index for index, client in enumerate(self._advertisements, start=1)}

        def parse(client: int, fields: dict[str, bytes]) -> dict[str, bytes]:
            # Shares that were damaged on their way to this client are missing.
            if not fields.keys() <= expected or any(len(share) != SHARE_BYTES for share in fields.values()):
                raise AggregationError(f"shares from client {client}: expected at most one of every client")
            if any(share_index(share) != indices[client] for share in fields.values()):
                raise AggregationError(f"shares from client {client}: of another index")
            return fields

        revealed = self._collect("unmask", self._signed, responses, parse)
        shares = RevealedShares(list(revealed.values()), self.config.effective_threshold)
        total = self._total.copy()
        self._remove_self_masks(total, shares)
        self._remove_pairwise_masks(total, shares)
        return self._decode(total)

    def _remove_self_masks(self, total: RingVector, shares: RevealedShares) -> None:
        context = self.config.context
        for client in self.survivors:
            commitment = self._advertisements[client].commitment
            seed = shares.recover("seed", client, partial(seed_commitment, context, client), commitment)
            add_mask(total, self_mask_key(context, client, seed), subtract=True)

    def _remove_pairwise_masks(self, total: RingVector, shares: RevealedShares) -> None:
        """Remove the masks that survivors share with clients that dropped out; all others cancel."""
        context = self.config.context
        for client in self._shared:
            if client in self.survivors:
                continue
            masking_key = self._advertisements[client].masking_key
            secret = shares.recover("key", client, primitives.public_key, masking_key)
            for other in self.survivors:
                public = self._advertisements[other].masking_key
                key = pairwise_mask_key(context, secret, client, other, public)
                add_pairwise_mask(total, key, other, client, undo=True)

    def _decode(self, total: RingVector) -> Aggregate:
        config, count = self.config, len(self.survivors)
        signed = config.encoding.to_signed(total)
        weight, max_encoded = int(signed[-1]), config.encoding.max_encoded(config.max_weight)
        # Masks that do not cancel leave values all over the range.
        low, high = int(signed[:-1].min()), int(signed[:-1].max())
        if not count <= weight <= count * config.max_weight or max(-low, high) > count * max_encoded:
            raise SpoiledSum(
                "sum: beyond the clients' bounds; a client sent a vector that does not follow the protocol"
            )
        return Aggregate(config.encoding.decode(total[:-1], weight), weight, self.survivors)

    def _collect(
        self,
        step: str,
        clients: Collection[int],
        responses: Mapping[int, Message],
        parse: Callable[[int, dict[str, bytes]], T],
    ) -> dict[int, T]:
        """Parse each response, in increasing order of client ids; raises if fewer than t are valid."""
        if self._step != step:
            raise AggregationError(f"server: asked for {step}, but its next step is {self._step}")
        parsed = {}
        for client in sorted(responses):
            try:
                if client not in clients:
                    raise AggregationError(f"{step}: client {client} was not asked")
                fields = message_fields(responses[client], step, self.config.context)
                parsed[client] = parse(client, fields)
            except AggregationError as error:
                self.rejected[client] = str(error)
        self._step = "over"
        threshold = self.config.effective_threshold
        if len(parsed) < threshold:
            raise AggregationError(
                f"{step}: {len(parsed)} of {len(clients)} clients answered, expected {threshold} or more",
                field=step,
                value=len(parsed),
                expected=f"{threshold} or more",
            )
        self._step = (*STEPS, "over")[STEPS.index(step) + 1]
        return parsed
