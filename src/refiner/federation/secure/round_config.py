"""What all sides of a round agree on before it: every key, signature and ciphertext is bound to it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from refiner import checks
from refiner.federation.secure.fixedpoint import FixedPoint
from refiner.federation.secure.primitives import DIGEST_BYTES, digest

_PROTOCOL = "refiner-secure-aggregation-1"


@dataclass(frozen=True)
class Agreement:
    """One round's settings. A client makes its own, from what it knows; a server's word is not enough.

    >>> from refiner.federation.secure import Identity
    >>> known = {client: Identity.generate().public for client in range(10)}
    >>> Agreement("training 7", 1, known, size=15826).needed
    7
    >>> Agreement("training 7", 1, known, size=15826, threshold=5)
    Traceback (most recent call last):
    refiner.errors.SettingError: threshold = 5: expected an integer in [6, 10]
    """

    session: str
    """Names the training; two trainings of the same clients never have the same."""
    round: int
    identities: Mapping[int, bytes]
    """The clients asked to take part, by id, with their public identity keys; from a list that is trusted."""
    size: int
    """Length of an update."""
    threshold: int | None = None
    """t, how many clients must stay to the end. None for ⌊2n/3⌋ + 1.

    More than n/2: at the end a client gives, of each other one, either its share of the self-mask or its
    share of the mask key. A server that tells some clients "it stayed" and others "it dropped out" needs t
    answers from each side to lift both masks, and as 2t > n it can't have them. With c clients on the
    server's side this takes 2t > n + c; ⌊2n/3⌋ + 1 bears c < n/3.
    """
    max_weight: int = 1
    """The largest weight of a client, such as its number of samples; 1 for a plain mean."""
    encoding: FixedPoint = field(default_factory=FixedPoint)
    order: bytes = b""
    """A digest of what a server asks the clients to make their updates of, such as weights and a rate; empty
    where it has no say in that.

    In a sum of clients with different orders the updates of all but one can be made to round to nothing.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.session, str) or not self.session:
            raise checks.wrong("session", self.session, "a text that is not empty")
        checks.integer("round", self.round, 0, 2**64 - 1)
        checks.integer("size", self.size, 1, 2**32)
        if not isinstance(self.identities, Mapping) or len(self.identities) < 2:
            raise checks.wrong("identities", self.identities, "the public keys of 2 clients or more, by id")
        for client, key in self.identities.items():
            checks.integer("client", client, 0, 2**64 - 1)
            if not isinstance(key, bytes) or len(key) != 32:
                raise checks.wrong(f"identities[{client}]", key, "32 bytes, an Ed25519 public key")
        if len(set(self.identities.values())) < self.clients:
            raise checks.wrong("identities", "the same key twice", "a key for each client")
        if self.threshold is not None:
            checks.integer("threshold", self.threshold, self.clients // 2 + 1, self.clients)
        checks.integer("max_weight", self.max_weight, 1, 2**52)
        self.encoding.check_room(self.clients, self.max_weight)
        if not isinstance(self.order, bytes) or len(self.order) not in (0, DIGEST_BYTES):
            raise checks.wrong("order", self.order, f"{DIGEST_BYTES} bytes, a digest, or none")
        held = MappingProxyType(dict(sorted(self.identities.items())))
        object.__setattr__(self, "identities", held)

    @property
    def clients(self) -> int:
        """n, how many are asked to take part."""
        return len(self.identities)

    @property
    def needed(self) -> int:
        """t."""
        return 2 * self.clients // 3 + 1 if self.threshold is None else self.threshold

    @cached_property
    def context(self) -> bytes:
        """A digest of all of it."""
        who = [part for pair in self.identities.items() for part in pair]
        numbers = (self.round, self.size, self.needed, self.max_weight, self.clients)
        encoding = (self.encoding.fraction_bits, self.encoding.modulus_bits)
        bound = float(self.encoding.bound).hex()
        return digest(_PROTOCOL, self.session, self.order, *numbers, bound, *encoding, *who)
