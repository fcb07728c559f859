"""The shares that clients revealed at the end of a round, some of them perhaps wrong."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from math import comb

from refiner.federation.secure.errors import SpoiledSum
from refiner.federation.secure.secret_sharing import combine_shares

# Choices of shares that are tried for a secret. With a third of the shares to spare, one wrong share spoils
# all of them once in 10,000 times.
_ATTEMPTS = 24


class RevealedShares:
    """Recovers clients' secrets from any `threshold` shares that fit together.

    A secret is compared with what its owner committed to, so a wrong share is noticed, and others are tried.

    Args:
        responses: The shares of each client that answered, named `seed:ID` or `key:ID` after the owner of
            the secret.
        threshold: How many shares recover a secret.
    """

    def __init__(self, responses: Sequence[Mapping[str, bytes]], threshold: int) -> None:
        self._responses, self._threshold = list(responses), threshold

    def recover(self, kind: str, client: int, derive: Callable[[bytes], bytes], expected: bytes) -> bytes:
        """The secret of `client`, from which `derive` gives what its owner advertised, `expected`.

        Raises:
            SpoiledSum: Too few shares were revealed, or they do not fit together.
        """
        name = f"{kind}:{client}"
        holders = [response for response in self._responses if name in response]
        if len(holders) < self._threshold:
            raise SpoiledSum(
                f"{kind} of client {client}: {len(holders)} shares, expected {self._threshold} or more; "
                "the others did not receive theirs undamaged",
                client,
            )
        for chosen in self._choices(holders):
            secret = combine_shares([response[name] for response in chosen])
            if secret is not None and derive(secret) == expected:
                # Whoever revealed a wrong share here may have done so for the next secret, too.
                self._responses.sort(key=lambda response: not any(response is each for each in chosen))
                return secret
        raise SpoiledSum(
            f"{kind} of client {client}: the shares do not recover the one it committed to", client
        )

    def _choices(self, holders: list[Mapping[str, bytes]]) -> Iterable[Sequence[Mapping[str, bytes]]]:
        """Some choices of as many shares as are needed, the first ones first."""
        if comb(len(holders), self._threshold) <= _ATTEMPTS:
            yield from combinations(holders, self._threshold)
            return
        yield holders[: self._threshold]
        rng = random.Random(0)  # seeded: which shares are tried is no secret
        for _ in range(_ATTEMPTS - 1):
            yield rng.sample(holders, self._threshold)
