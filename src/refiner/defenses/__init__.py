"""Defences: each turns a client's batch into an `Update` that may leave the machine."""

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
from refiner.registry import Registry, check_settings_class, make_by_name, split_chain

DEFENSES: Registry[Defense] = Registry(
    "refiner.defenses",
    {
        "none": NoDefense,
        "refiner": Refiner,
        "refiner-paper": Refiner.paper,
        "dp-gaussian": DPGaussian,
        "dp-laplace": DPLaplace,
        "gq": Quantisation,
        "pruning": Pruning,
        "soteria": Soteria,
    },
    check=check_settings_class(Defense),
)
"""Every defence by name, third-party ones included; `refiner-paper` is Refiner with the paper's settings."""

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
    links = split_chain(DEFENSES, text)
    if len(links) == 1:
        return make_by_name(DEFENSES, "defense", text, **settings)
    if settings:
        raise DataError(f"defense = {text!r}: a chain has its settings in its text, NAME:setting=value+NAME")
    return Chain([make_by_name(DEFENSES, "defense", link) for link in links])


def label(text: str) -> str:
    """The names in `text` without their settings.

    >>> label("refiner-paper:iterations=5+none")
    'refiner-paper+none'
    """
    return "+".join(link.partition(":")[0] for link in split_chain(DEFENSES, text))
