"""How the server aggregates a round's updates: it sees each of them, or only their sum."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

from refiner import checks
from refiner.errors import SettingError
from refiner.federation.secure import AggregationError, FixedPoint, RoundConfig
from refiner.registry import make_by_name


@dataclass(frozen=True)
class Plain:
    """Plain aggregation: the server sees every client's update."""

    name: ClassVar[str] = "plain"


@dataclass(frozen=True)
class Secure:
    """Secure aggregation: the server sees only the sum of the updates.

    Server and clients each have their own copy of these settings. All but `minimum` must be the same.

    Args:
        threshold: The threshold t: how many clients must complete a round; ⌊2n/3⌋ + 1 if left out.
        minimum: The smallest number of clients whose sum may be revealed. A round with a lower threshold is
            rejected.
        max_weight: The largest number of samples that a client's update counts for.
        bound: The largest magnitude of a value of an update; a client clips larger ones.
        fraction_bits: Fractional bits of the fixed-point encoding.
        modulus_bits: Bits of the modulus, 32 or 64.

    Raises:
        SettingError: If a value lies outside its range.

    >>> Secure(minimum=4).min_clients
    5
    >>> Secure(minimum=1)
    Traceback (most recent call last):
    refiner.errors.SettingError: minimum = 1: expected an integer ≥ 2
    """

    name: ClassVar[str] = "secure"

    threshold: int | None = None
    minimum: int = 3
    max_weight: int = 4096
    bound: float = 64.0
    fraction_bits: int = 32
    modulus_bits: int = 64

    def __post_init__(self) -> None:
        if self.threshold is not None:
            checks.integer("threshold", self.threshold, 2)
        checks.integer("minimum", self.minimum, 2)
        checks.integer("max_weight", self.max_weight, 1, 2**52)
        self.encoding.check_sum_fits(2, self.max_weight)

    @property
    def encoding(self) -> FixedPoint:
        """How an update is encoded as integers."""
        return FixedPoint(self.bound, self.fraction_bits, self.modulus_bits)

    @property
    def min_clients(self) -> int:
        """The smallest number of clients of a round whose threshold can be met and is at least `minimum`."""
        if self.threshold is not None:
            return self.threshold
        return next(n for n in range(2, 2 * self.minimum + 1) if 2 * n // 3 + 1 >= self.minimum)

    def round_config(
        self,
        session: str,
        round: int,
        clients: Iterable[int],
        public_keys: Mapping[int, bytes],
        size: int,
        instructions_digest: bytes,
    ) -> RoundConfig:
        """The configuration of a round of these clients, as one side computes it from its own settings.

        Args:
            session: Name of the training run.
            round: Number of the round.
            clients: Ids of the clients that take part.
            public_keys: All public identity keys that this side has, by client id.
            size: Number of values of an update.
            instructions_digest: Digest of the training instructions.

        Raises:
            AggregationError: If the public key of a client is missing.
            SettingError: If the sum of fewer than `minimum` clients could be revealed.
        """
        participants = list(clients)
        for client in participants:
            if client not in public_keys:
                raise AggregationError(
                    f"clients: no key of client {client} in identities.json",
                    field="clients",
                    value=client,
                    expected="clients in identities.json",
                )
        config = RoundConfig(
            session,
            round,
            {client: public_keys[client] for client in participants},
            size,
            self.threshold,
            self.max_weight,
            self.encoding,
            instructions_digest,
        )
        if config.effective_threshold < self.minimum:
            raise SettingError(
                f"minimum = {self.minimum}: a round of {config.clients} clients could reveal the sum of "
                f"{config.effective_threshold}; use more clients or a lower minimum",
                field="minimum",
                value=self.minimum,
                expected=f"at most {config.effective_threshold}, or more clients",
            )
        return config

    def check(self, clients: int) -> None:
        """Raise if a round of this many clients is impossible with these settings.

        >>> Secure(threshold=2, minimum=2).check(4)
        Traceback (most recent call last):
        refiner.errors.SettingError: threshold = 2: expected an integer in [3, 4]
        """
        if clients < 2:
            raise checks.wrong("clients", clients, "2 or more for aggregation = secure")
        public_keys = {client: client.to_bytes(32, "big") for client in range(clients)}
        self.round_config("check", 0, public_keys, public_keys, 1, b"")


AGGREGATIONS: dict[str, Callable[..., Plain | Secure]] = {"plain": Plain, "secure": Secure}
"""Every kind of aggregation by name."""


def make_aggregation(text: str) -> Plain | Secure:
    """A kind of aggregation from its name, with settings: `secure:threshold=7`.

    >>> make_aggregation("secure:threshold=7,minimum=5").threshold
    7
    """
    if not isinstance(text, str):
        raise checks.wrong("aggregation", text, "a string such as 'secure'")
    return make_by_name(AGGREGATIONS, "aggregation", text)


def session_name(run: int) -> str:
    """The name of a training run, from the id that Flower gave it."""
    return f"flower run {run}"
