"""What simulated clients remember between their uploads, as real ones do with `Defense.init_state`."""

from refiner.defenses import Defense, DefenseState


class ClientStates:
    """The states of a defence, one for the clients of each call.

    Args:
        defense: The clients' defence.

    >>> from refiner.defenses import NoDefense
    >>> states = ClientStates(NoDefense())
    >>> states.of(0, samples=4) is states.of(0, samples=4), states.of(0, 4) is states.of(2, 4)
    (True, False)
    """

    def __init__(self, defense: Defense) -> None:
        self._defense = defense
        self._by_first_victim: dict[int, DefenseState] = {}

    def of(self, first_victim: int, samples: int) -> DefenseState:
        """Return the state of the clients that are protected together, empty before their first upload.

        Args:
            first_victim: The number of the first of them: they must be the same in all uploads.
            samples: The samples of all of them.
        """
        if first_victim not in self._by_first_victim:
            self._by_first_victim[first_victim] = self._defense.init_state(samples)
        return self._by_first_victim[first_victim]
