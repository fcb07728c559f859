"""Defences: each turns a client's batch into an `Update` that may leave the machine."""

from collections.abc import Callable

from refiner.defenses.base import Defense
from refiner.defenses.none import NoDefense
from refiner.defenses.refiner import Refiner
from refiner.registry import make

DEFENSES: dict[str, Callable[..., Defense]] = {
    "none": NoDefense,
    "refiner": Refiner,
    "refiner-paper": Refiner.paper,
}
"""Every defence by name; `refiner-paper` is Refiner with the paper's settings."""

__all__ = ["DEFENSES", "Defense", "NoDefense", "Refiner", "make_defense"]


def make_defense(text: str, **settings: object) -> Defense:
    """A defence by its name, one of `DEFENSES`, with settings: `NAME` or `NAME:setting=value,…`.

    >>> make_defense("refiner-paper:iterations=5,epsilon=none").settings()["alpha"]
    0.5
    >>> make_defense("refine")
    Traceback (most recent call last):
    refiner.errors.DataError: defense = 'refine': unknown; did you mean 'refiner'? Known: none, ...
    """
    return make(DEFENSES, "defense", text, **settings)
