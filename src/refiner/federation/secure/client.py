"""The client's side of one round: five steps, each once and in order; an error ends the round."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Self

import numpy as np
from torch import Tensor

from refiner import checks
from refiner.errors import Description
from refiner.federation.secure import primitives
from refiner.federation.secure.client_state import ABORTED, DONE, ClientState
from refiner.federation.secure.errors import AggregationError
from refiner.federation.secure.fixedpoint import invalid_update
from refiner.federation.secure.identity import Identity
from refiner.federation.secure.masks import add_client_masks, seed_commitment
from refiner.federation.secure.messages import (
    ADVERTISEMENT_BYTES,
    ENCRYPTED_SHARES_BYTES,
    STEPS,
    KeyAdvertisement,
    Message,
    fields_by_client,
    ids_from_bytes,
    ids_to_bytes,
    keys_digest,
    make_message,
    message_fields,
    survivors_statement,
)
from refiner.federation.secure.primitives import SIGNATURE_BYTES
from refiner.federation.secure.round_config import RoundConfig
from refiner.federation.secure.secret_sharing import share_secret
from refiner.federation.secure.share_encryption import ShareCipher


class SecureClient:
    """One client in one round; create a new one, with fresh keys, for every round.

    Each step takes the server's message and returns this client's response. If a step raises, the client has
    left the round: its secrets are erased, and every later step raises an AggregationError.

    Args:
        config: The round's settings, built from what this client trusts.
        client: This client's id.
        identity: Its identity key, whose public part is in `config.identities`.
        last_round: The last round of this session that the client began; `config.round` must be later. An
            update that is part of two sums over different clients could be computed from their difference.

    Raises:
        AggregationError: The client has begun this round, or a later one, already.
        SettingError: `client` is not in the round, or `identity` is not its key.

    >>> identities = {client: Identity.generate() for client in (1, 2, 3)}
    >>> public_keys = {client: identity.public for client, identity in identities.items()}
    >>> client = SecureClient(RoundConfig("training 7", 1, public_keys, size=4), 2, identities[2])
    >>> sorted(client.advertise_keys())
    ['advert', 'context', 'step']
    >>> client.unmask({})
    Traceback (most recent call last):
    refiner.federation.secure.errors.AggregationError: client 2: asked for unmask, but its next step is share
    """

    def __init__(
        self, config: RoundConfig, client: int, identity: Identity, *, last_round: int | None = None
    ) -> None:
        if last_round is not None and config.round <= checks.integer("last_round", last_round, 0):
            raise AggregationError(
                f"round {config.round}: client {client} has begun round {last_round} already",
                field="round",
                value=config.round,
                expected=f"an integer > {last_round}",
            )
        if client not in config.identities:
            raise checks.wrong("client", client, f"one of {', '.join(map(str, config.identities))}")
        if identity.public != config.identities[client]:
            # Described, as the error must not carry the private key.
            raise checks.wrong("identity", Description(repr(identity)), f"the key listed for client {client}")
        self.config, self.client = config, client
        self._identity = identity
        self._state = ClientState()

    @property
    def step(self) -> str:
        """The next step, one of `STEPS`; `done` after the last one, `aborted` after an error."""
        return self._state.step

    def advertise_keys(self) -> dict[str, bytes]:
        """Step 1, key advertisement.

        Returns:
            The response: this client's public keys for the round, signed.
        """
        with self._running("advertise"):
            return self._response("advertise", {"advert": self._advertisement().to_bytes()})

    def share_keys(self, message: Message) -> dict[str, bytes]:
        """Step 2, share keys: verify all clients' keys and share this client's secrets.

        Args:
            message: The server's message with the key advertisements of all clients.

        Returns:
            The response: for each other client, its shares of this client's masking secret and self-mask
            seed, encrypted.

        Raises:
            AggregationError: A key is not signed by its owner for this round, appears twice, or this client's
                own key is missing; or there are fewer clients than the threshold.
        """
        with self._running("share"):
            identities, context = self.config.identities, self.config.context
            fields = self._fields(message, "share")
            advertisements = {
                other: KeyAdvertisement.from_bytes(raw, context, other, identities[other])
                for other, raw in fields_by_client(fields, "advert", identities, ADVERTISEMENT_BYTES).items()
            }
            self._check_threshold("key advertisements", advertisements)
            if advertisements.get(self.client) != self._advertisement():
                raise AggregationError(
                    f"key advertisements: that of client {self.client} itself is missing or changed"
                )
            public = advertisements.values()
            keys = [each.encryption_key for each in public] + [each.masking_key for each in public]
            if len(set(keys)) < len(keys):
                raise AggregationError("key advertisements: the same public key appears twice")
            self._state.advertisements = advertisements
            _, masking_secret, seed = self._state.secrets
            threshold, count = self.config.effective_threshold, len(advertisements)
            key_shares = share_secret(masking_secret, threshold, count)
            seed_shares = share_secret(seed, threshold, count)
            shares = dict(zip(advertisements, zip(key_shares, seed_shares, strict=True), strict=True))
            self._state.shares = {self.client: shares.pop(self.client)}
            cipher = self._share_cipher()
            return self._response(
                "share",
                {
                    f"to:{other}": cipher.encrypt(
                        advertisements[other].encryption_key, self.client, other, pair
                    )
                    for other, pair in shares.items()
                },
            )

    def mask_update(self, update: Tensor, message: Message, weight: int = 1) -> dict[str, bytes]:
        """Step 3, masked input: decrypt the other clients' shares and mask the update.

        Shares that cannot be decrypted are missing in step 5, which the round survives if the others have
        theirs: a client that sends damaged shares drives nobody out.

        Args:
            update: The update `[N]`, floating point; N is `config.size`.
            message: The server's message with the shares that the others encrypted for this client.
            weight: The weight of the update, in [1, config.max_weight].

        Returns:
            The response: weight · update and the weight, encoded as integers and masked.

        Raises:
            AggregationError: The shares of fewer clients than the threshold could be decrypted.
            DataError: The update has the wrong shape.
            SettingError: The weight is out of range.
        """
        with self._running("mask"):
            config, advertisements = self.config, self._state.advertisements
            checks.integer("weight", weight, 1, config.max_weight)
            others = [other for other in advertisements if other != self.client]
            fields = self._fields(message, "mask")
            ciphertexts = fields_by_client(fields, "from", others, ENCRYPTED_SHARES_BYTES)
            cipher, index = self._share_cipher(), sorted(advertisements).index(self.client) + 1
            for other, ciphertext in ciphertexts.items():
                pair = cipher.decrypt(
                    advertisements[other].encryption_key, other, self.client, index, ciphertext
                )
                if pair is not None:
                    self._state.shares[other] = pair
            # Before the masked update is sent: afterwards it is too late to abort.
            self._check_threshold("clients with valid shares", self._state.shares)
            self._state.shared = tuple(sorted([self.client, *ciphertexts]))
            if not isinstance(update, Tensor) or update.shape != (config.size,):
                raise invalid_update(update, f"expected a tensor of shape [{config.size}]; nothing was sent")
            values = config.encoding.encode(update, weight)
            vector = np.append(values, np.array([weight], dtype=values.dtype))
            _, masking_secret, seed = self._state.secrets
            masking_keys = {other: advertisements[other].masking_key for other in ciphertexts}
            add_client_masks(vector, config.context, self.client, seed, masking_secret, masking_keys)
            return self._response("mask", {"masked": vector.tobytes()})

    def confirm_survivors(self, message: Message) -> dict[str, bytes]:
        """Step 4, consistency check: sign the list of survivors, so that the server can use only one list.

        Args:
            message: The server's message with the clients whose masked updates it received.

        Returns:
            The response: this client's signature of the list.

        Raises:
            AggregationError: The list lacks this client, names one that did not share keys, or is shorter
                than the threshold.
        """
        with self._running("confirm"):
            fields = self._fields(message, "confirm")
            if set(fields) != {"survivors"}:
                raise AggregationError("confirm message: expected survivors and no other field")
            survivors = ids_from_bytes(fields["survivors"])
            if not {self.client} <= set(survivors) <= set(self._state.shared):
                raise AggregationError(
                    f"survivors: expected clients that shared keys, client {self.client} among them"
                )
            self._check_threshold("survivors", survivors)
            self._state.survivors = survivors
            return self._response("confirm", {"signature": self._identity.sign(*self._statement())})

    def unmask(self, message: Message) -> dict[str, bytes]:
        """Step 5, unmasking: reveal one share of each client's secrets.

        Args:
            message: The server's message with the survivors and their signatures.

        Returns:
            The response: for each survivor the share of its self-mask seed, for each client that dropped out
            after sharing the share of its masking secret, as far as this client has them.

        Raises:
            AggregationError: The list is not the one that this client signed, or has fewer valid signatures
                than the threshold.
        """
        with self._running("unmask"):
            fields, survivors = self._fields(message, "unmask"), self._state.survivors
            if fields.pop("survivors", None) != ids_to_bytes(survivors):
                raise AggregationError("survivors: not those that this client signed; no share is revealed")
            signatures = fields_by_client(fields, "signature", survivors, SIGNATURE_BYTES)
            self._check_threshold("signatures of survivors", signatures)
            statement = self._statement()
            for other, signature in signatures.items():
                if not primitives.verify_signature(self.config.identities[other], signature, *statement):
                    raise AggregationError(
                        f"signature of client {other}: not of these survivors; no share is revealed"
                    )
            # One of the two shares per client, and only once: both together would remove all of its masks.
            revealed = {}
            for other, (key_share, seed_share) in self._state.shares.items():
                if other in survivors:
                    revealed[f"seed:{other}"] = seed_share
                else:
                    revealed[f"key:{other}"] = key_share
            return self._response("unmask", revealed)

    def state(self) -> bytes:
        """The client's state, secrets included, to continue in another process on the same machine.

        Store it before the step's response is sent, replacing the previous one: a client restored from an
        older state could be asked for the other share of the same secrets. Never send it.

        Returns:
            The state, for `restore`.
        """
        return self._state.to_bytes(self.config, self.client)

    @classmethod
    def restore(cls, config: RoundConfig, client: int, identity: Identity, state: bytes) -> Self:
        """Restore a client from its state.

        Args:
            config: The same round's settings.
            client: The same client's id.
            identity: Its identity key.
            state: What `state()` returned.

        Returns:
            The client, at the step where `state` was taken.

        Raises:
            AggregationError: The state is damaged, or of another client or round.

        >>> identities = {client: Identity.generate() for client in (1, 2)}
        >>> public_keys = {client: identity.public for client, identity in identities.items()}
        >>> config = RoundConfig("training 7", 1, public_keys, size=4)
        >>> client = SecureClient(config, 1, identities[1])
        >>> response = client.advertise_keys()
        >>> SecureClient.restore(config, 1, identities[1], client.state()).step
        'share'
        """
        restored = cls(config, client, identity)
        restored._state = ClientState.from_bytes(state, config, client)
        return restored

    @contextmanager
    def _running(self, step: str) -> Iterator[None]:
        """Run one step: check that it is the next one, and advance or abort afterwards."""
        state = self._state
        if state.step != step:
            reason = "it has left the round" if state.step == ABORTED else f"its next step is {state.step}"
            raise AggregationError(f"client {self.client}: asked for {step}, but {reason}")
        # Aborted until the step has succeeded, so that no kind of failure leaves a way to continue.
        state.step = ABORTED
        try:
            yield
        except BaseException:
            state.erase_secrets()
            raise
        state.step = (*STEPS, DONE)[STEPS.index(step) + 1]
        if state.step == DONE:
            state.erase_secrets()

    def _fields(self, message: Message, step: str) -> dict[str, bytes]:
        return message_fields(message, step, self.config.context)

    def _response(self, step: str, fields: dict[str, bytes]) -> dict[str, bytes]:
        return make_message(step, self.config.context, fields)

    def _check_threshold(self, what: str, clients: Collection[int]) -> None:
        threshold = self.config.effective_threshold
        if len(clients) < threshold:
            raise AggregationError(
                f"{what}: {len(clients)}, expected {threshold} or more; nothing was sent",
                field=what,
                value=len(clients),
                expected=f"{threshold} or more",
            )

    def _advertisement(self) -> KeyAdvertisement:
        (encryption_secret, masking_secret, seed), context = self._state.secrets, self.config.context
        return KeyAdvertisement.create(
            self._identity.sign,
            context,
            self.client,
            primitives.public_key(encryption_secret),
            primitives.public_key(masking_secret),
            seed_commitment(context, self.client, seed),
        )

    def _keys_digest(self) -> bytes:
        return keys_digest(self.config.context, self._state.advertisements)

    def _share_cipher(self) -> ShareCipher:
        return ShareCipher(self._state.secrets[0], self.config.context, self._keys_digest())

    def _statement(self) -> tuple[str | bytes, ...]:
        return survivors_statement(self._keys_digest(), self._state.shared, self._state.survivors)
