"""The configuration of a round, to which every key, signature and ciphertext of the round is bound."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from refiner import checks
from refiner.federation.secure.fixedpoint import FixedPoint
from refiner.federation.secure.primitives import DIGEST_BYTES, digest

_PROTOCOL = "refiner-secure-aggregation-1"


@dataclass(frozen=True)
class RoundConfig:
    """The settings of one round.

    Each client builds its own from data that it trusts, not from what the server sends: messages between
    sides with different settings are rejected.

    Args:
        session: Name of the training run; two runs of the same clients must have different names.
        round: Number of the round, from 0.
        identities: Public identity keys of the clients asked to take part, by client id; from a trusted list.
        size: Number of values of an update.
        threshold: The threshold t, in (n/2, n]: how many clients must complete the round. None for
            ⌊2n/3⌋ + 1.
        max_weight: The largest weight of a client, such as its number of samples; 1 for an unweighted mean.
        encoding: How values are encoded as integers.
        instructions_digest: SHA-256 digest of the server's training instructions (weights, learning rate,
            ...); empty if the server has no influence on how updates are computed. With different
            instructions for different clients, a server could make all updates of a sum but one round to 0.

    Why t > n/2: in the last step a client reveals, for each other client, either its share of the self-mask
    seed or its share of the masking secret. A server that tells some clients "it survived" and others "it
    dropped out" needs t answers from both groups to remove both masks, which 2t > n rules out. With c clients
    colluding with the server, 2t > n + c is needed; ⌊2n/3⌋ + 1 tolerates c < n/3.

    Raises:
        SettingError: A setting is out of range, or a sum could wrap around the modulus.

    >>> from refiner.federation.secure import Identity
    >>> identities = {client: Identity.generate().public for client in range(10)}
    >>> RoundConfig("training 7", 1, identities, size=15826).effective_threshold
    7
    >>> RoundConfig("training 7", 1, identities, size=15826, threshold=5)
    Traceback (most recent call last):
    refiner.errors.SettingError: threshold = 5: expected an integer in [6, 10]
    """

    session: str
    round: int
    identities: Mapping[int, bytes]
    size: int
    threshold: int | None = None
    max_weight: int = 1
    encoding: FixedPoint = field(default_factory=FixedPoint)
    instructions_digest: bytes = b""

    def __post_init__(self) -> None:
        if not isinstance(self.session, str) or not self.session:
            raise checks.wrong("session", self.session, "a string that is not empty")
        checks.integer("round", self.round, 0, 2**64 - 1)
        checks.integer("size", self.size, 1, 2**32)
        if not isinstance(self.identities, Mapping) or len(self.identities) < 2:
            raise checks.wrong(
                "identities", self.identities, "the public keys of at least 2 clients, by client id"
            )
        for client, key in self.identities.items():
            checks.integer("client", client, 0, 2**64 - 1)
            if not isinstance(key, bytes) or len(key) != 32:
                raise checks.wrong(f"identities[{client}]", key, "32 bytes, an Ed25519 public key")
        if len(set(self.identities.values())) < self.clients:
            raise checks.wrong("identities", "the same key twice", "a different key for each client")
        if self.threshold is not None:
            checks.integer("threshold", self.threshold, self.clients // 2 + 1, self.clients)
        checks.integer("max_weight", self.max_weight, 1, 2**52)
        self.encoding.check_sum_fits(self.clients, self.max_weight)
        if not isinstance(self.instructions_digest, bytes) or len(self.instructions_digest) not in (
            0,
            DIGEST_BYTES,
        ):
            raise checks.wrong(
                "instructions_digest", self.instructions_digest, f"{DIGEST_BYTES} bytes or none"
            )
        by_id = MappingProxyType(dict(sorted(self.identities.items())))
        object.__setattr__(self, "identities", by_id)

    @property
    def clients(self) -> int:
        """The number n of clients asked to take part."""
        return len(self.identities)

    @property
    def effective_threshold(self) -> int:
        """The threshold t, with the default filled in."""
        return 2 * self.clients // 3 + 1 if self.threshold is None else self.threshold

    @cached_property
    def context(self) -> bytes:
        """Digest of all settings."""
        identities = [part for pair in self.identities.items() for part in pair]
        numbers = (self.round, self.size, self.effective_threshold, self.max_weight, self.clients)
        bits = (self.encoding.fraction_bits, self.encoding.modulus_bits)
        bound = float(self.encoding.bound).hex()
        return digest(_PROTOCOL, self.session, self.instructions_digest, *numbers, bound, *bits, *identities)
