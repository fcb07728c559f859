"""The defences that a recommendation chooses from, each at several strengths."""

from refiner.defenses import make_defense
from refiner.errors import DataError

CANDIDATES = (
    "gq:bits=8",
    "gq:bits=2",
    "pruning:rate=0.9",
    "pruning:rate=0.99",
    "dp-gaussian:magnitude=0.01,clip=none",
    "dp-gaussian:magnitude=0.1,clip=none",
    "dp-gaussian:magnitude=1,clip=none",
    "soteria:rate=0.8,sensitivity=estimated",
    "refiner:alpha=2",
    "refiner",
    "refiner:alpha=4",
    "refiner:search=never",
)
"""From the quickest to the slowest."""

KEPT_LONGEST = (
    "refiner",
    "pruning:rate=0.99",
    "dp-gaussian:magnitude=0.1,clip=none",
    "refiner:alpha=4",
    "dp-gaussian:magnitude=1,clip=none",
    "gq:bits=2",
    "soteria:rate=0.8,sensitivity=estimated",
)
"""What a short search keeps, the longest kept first: the default, a quick one, then strong ones."""

TABLE_CANDIDATES = (
    "gq:bits=8",
    "gq:bits=1",
    "pruning:rate=0.9",
    "pruning:rate=0.99",
    "dp-gaussian:magnitude=0.1,clip=1,per_sample=true",
    "dp-gaussian:magnitude=0.3,clip=1,per_sample=true",
    "dp-gaussian:magnitude=1,clip=1,per_sample=true",
    "dp-gaussian:magnitude=0.01,clip=none",
    "dp-gaussian:magnitude=0.1,clip=none",
    "dp-gaussian:magnitude=1,clip=none",
    "soteria:rate=0.8,sensitivity=estimated",
)
"""For tabular data: Refiner's noise is made for images."""


def check_candidates(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names without repetitions.

    Raises:
        DataError: There is none, or one is unknown or has a wrong setting.

    >>> check_candidates(("pruning", "pruning"))
    ('pruning',)
    >>> check_candidates(("none",))
    Traceback (most recent call last):
    refiner.errors.DataError: defenses = ['none']: expected at least one defence; none is always measured
    """
    chosen = tuple(name for name in dict.fromkeys(names) if name != "none")
    if not chosen:
        raise DataError(
            field="defenses", value=list(names), expected="at least one defence; none is always measured"
        )
    for name in chosen:
        make_defense(name)
    return chosen
