"""Defences: each turns a client's batch into an `Update` that may leave the machine."""

from collections.abc import Callable

from refiner.defenses.accounting import dp_epsilon
from refiner.defenses.base import Defense
from refiner.defenses.chain import Chain
from refiner.defenses.dp import DPGaussian, DPLaplace
from refiner.defenses.none import NoDefense
from refiner.defenses.pruning import Pruning
from refiner.defenses.quantisation import Quantisation
from refiner.defenses.refiner import Refiner
from refiner.defenses.soteria import Soteria
from refiner.errors import DataError
from refiner.registry import make, split

DEFENSES: dict[str, Callable[..., Defense]] = {
    "none": NoDefense,
    "refiner": Refiner,
    "refiner-paper": Refiner.paper,
    "dp-gaussian": DPGaussian,
    "dp-laplace": DPLaplace,
    "gq": Quantisation,
    "pruning": Pruning,
    "soteria": Soteria,
}
"""Every defence by name; `refiner-paper` is Refiner with the paper's settings."""

__all__ = [
    "DEFENSES",
    "Chain",
    "DPGaussian",
    "DPLaplace",
    "Defense",
    "NoDefense",
    "Pruning",
    "Quantisation",
    "Refiner",
    "Soteria",
    "dp_epsilon",
    "label",
    "make_defense",
]


def make_defense(text: str, **settings: object) -> Defense:
    """A defence by its name, one of `DEFENSES`, with settings: `NAME` or `NAME:setting=value,…`.

    Several are joined by a plus, each on what the one before it made: `refiner:iterations=5+none`.

    >>> make_defense("refiner-paper:iterations=5,epsilon=none").settings()["alpha"]
    0.5
    >>> make_defense("refine")
    Traceback (most recent call last):
    refiner.errors.DataError: defense = 'refine': unknown; did you mean 'refiner'? Known: none, ...
    """
    parts = split(DEFENSES, text)
    if len(parts) == 1:
        return make(DEFENSES, "defense", text, **settings)
    if settings:
        raise DataError(f"defense = {text!r}: a chain has its settings in its text, NAME:setting=value+NAME")
    return Chain([make(DEFENSES, "defense", part) for part in parts])


def label(text: str) -> str:
    """The names in `text` without their settings.

    >>> label("refiner-paper:iterations=5+none")
    'refiner-paper+none'
    """
    return "+".join(part.partition(":")[0] for part in split(DEFENSES, text))
