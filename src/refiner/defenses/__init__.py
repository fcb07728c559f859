"""Defences: each turns a client's batch into an `Update` that may leave the machine."""

from collections.abc import Callable

from refiner.checks import nearest
from refiner.defenses.base import Defense
from refiner.defenses.none import NoDefense
from refiner.defenses.refiner import Refiner

DEFENSES: dict[str, Callable[..., Defense]] = {
    "none": NoDefense,
    "refiner": Refiner,
    "refiner-paper": Refiner.paper,
}
"""Every defence by name; `refiner-paper` is Refiner with the paper's settings."""

__all__ = ["DEFENSES", "Defense", "NoDefense", "Refiner", "make_defense"]


def make_defense(name: str, **settings: object) -> Defense:
    """A defence by its name, one of `DEFENSES`, with its own settings.

    >>> make_defense("refiner-paper", iterations=5).settings()["alpha"]
    0.5
    >>> make_defense("refine")
    Traceback (most recent call last):
    refiner.errors.DataError: defense = 'refine': unknown; did you mean 'refiner'? Known: none, ...
    """
    if name not in DEFENSES:
        raise nearest(name, DEFENSES, "defense")
    return DEFENSES[name](**settings)
