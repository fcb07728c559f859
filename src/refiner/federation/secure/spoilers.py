"""Finds the client that spoils secure sums, although nobody sees whose masked update was wrong."""

import random
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

# After so many good sums in a row nobody is suspected any more.
_FORGIVING_ROUNDS = 10
# After so many spoiled sums in a row there is no hope to find out who does it.
_HOPELESS_ROUNDS = 10


@dataclass
class SpoilerSearch:
    """Suspects whoever was part of every spoiled sum, and leaves half of the suspects out of each round.

    A hostile client is part of every sum that it spoils, whatever it does in the others; an honest one is
    part of half of them. So after a few spoiled sums one suspect is left. Only several hostile clients
    together can shift the blame to an honest one.

    Args:
        minimum: The smallest number of clients that a round needs.
        seed: Decides who is left out; a new draw in every round.

    >>> search = SpoilerSearch(minimum=3, seed="run 7")
    >>> for round in range(1, 30):
    ...     asked = search.choose(range(8), round)
    ...     search.spoiled(asked) if 5 in asked else search.succeeded()
    >>> search.banned, len(search.choose(range(8), 30))
    ({5}, 7)
    """

    minimum: int
    seed: str
    banned: set[int] = field(default_factory=set)
    """Clients that spoiled sums; they take no part any more."""
    suspects: set[int] = field(default_factory=set)
    """Clients that were part of every spoiled sum, while there are several."""
    _good_rounds: int = 0
    _spoiled_rounds: int = 0

    @property
    def hopeless(self) -> bool:
        """Whether the last sums were all spoiled: too few clients to leave some out, or too many spoilers."""
        return self._spoiled_rounds >= _HOPELESS_ROUNDS

    def choose(self, clients: Iterable[int], round: int) -> tuple[int, ...]:
        """The clients to ask in a round, out of those that could be asked."""
        allowed = sorted(set(clients) - self.banned)
        suspects = [client for client in allowed if client in self.suspects]
        cleared = len(allowed) - len(suspects)
        count = max((len(suspects) + 1) // 2, min(len(suspects), self.minimum - cleared))
        asked = set(random.Random(f"{self.seed} {round}").sample(suspects, count))
        return tuple(client for client in allowed if client in asked or client not in self.suspects)

    def spoiled(self, participants: Collection[int]) -> None:
        """One of the clients whose updates are in a sum has spoiled it."""
        self._good_rounds, self._spoiled_rounds = 0, self._spoiled_rounds + 1
        # If no client was part of all spoiled sums, there are several spoilers: search for this one.
        self.suspects = (self.suspects & set(participants)) or set(participants)
        if len(self.suspects) == 1:
            self.ban(*self.suspects)

    def ban(self, client: int) -> None:
        """Ask a client no more."""
        self.banned.add(client)
        self.suspects = set()

    def succeeded(self) -> None:
        """A sum was within its bounds."""
        self._good_rounds, self._spoiled_rounds = self._good_rounds + 1, 0
        if self._good_rounds == _FORGIVING_ROUNDS:
            self.suspects = set()
