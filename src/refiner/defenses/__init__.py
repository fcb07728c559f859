"""Defences: each turns a client's batch into an `Update` that the client can upload."""

from refiner.defenses.accounting import dp_epsilon
from refiner.defenses.base import Defense
from refiner.defenses.batch import Batch
from refiner.defenses.chain import Chain
from refiner.defenses.defense_facts import DefenseFacts
from refiner.defenses.dp import DPGaussian, DPLaplace
from refiner.defenses.gradient_transform import GradientTransform
from refiner.defenses.none import NoDefense
from refiner.defenses.pruning import Pruning
from refiner.defenses.quantisation import Quantisation
from refiner.defenses.recup import RecUP
from refiner.defenses.refiner import Refiner
from refiner.defenses.result import Protection, Upload
from refiner.defenses.soteria import Soteria
from refiner.defenses.state import DefenseState
from refiner.defenses.wire_format import WireFormat
from refiner.errors import DataError
from refiner.registry import Registry, check_settings_class, make_by_name, parse_chain

DEFENSES: Registry[Defense] = Registry(
    "refiner.defenses",
    {
        "none": NoDefense,
        "refiner": Refiner,
        "refiner-light": Refiner.light,
        "refiner-paper": Refiner.paper,
        "dp-gaussian": DPGaussian,
        "dp-laplace": DPLaplace,
        "gq": Quantisation,
        "pruning": Pruning,
        "soteria": Soteria,
        "recup": RecUP,
    },
    check=check_settings_class(Defense),
)
"""Every defence by name, third-party ones included; `refiner-light` and `-paper` are Refiner's presets."""

__all__ = [
    "DEFENSES",
    "Batch",
    "Chain",
    "DPGaussian",
    "DPLaplace",
    "Defense",
    "DefenseFacts",
    "DefenseState",
    "GradientTransform",
    "NoDefense",
    "Protection",
    "Pruning",
    "Quantisation",
    "RecUP",
    "Refiner",
    "Soteria",
    "Upload",
    "WireFormat",
    "dp_epsilon",
    "make_defense",
    "short_name",
]


def make_defense(text: str, **settings: object) -> Defense:
    """Return a defence by its name, with settings: `NAME` or `NAME:setting=value,…`.

    Args:
        text: A name in `DEFENSES`, optionally with settings. A plus chains several, each applied to the
            result of the one before: `refiner:iterations=5+gq`.
        settings: Further settings of a single defence; those in `text` take precedence.

    Returns:
        The defence, a `Chain` for several.

    Raises:
        DataError: If a name or setting is unknown.
        SettingError: If a value is out of range, the chain is invalid, or the defence must be fitted first.

    >>> make_defense("refiner-paper:iterations=5,epsilon=none").settings()["alpha"]
    0.5
    >>> make_defense("refine")
    Traceback (most recent call last):
    refiner.errors.DataError: defense = 'refine': unknown; did you mean 'refiner'? Known: none, ...
    """
    links = parse_chain(DEFENSES, text)
    if len(links) == 1:
        defense = make_by_name(DEFENSES, "defense", text, **settings)
        defense.check_ready()
        return defense
    if settings:
        raise DataError(
            field="defense",
            value=text,
            problem="the settings of a chain belong in its text, NAME:setting=value+NAME",
        )
    return Chain([make_defense(link) for link in links])


def short_name(text: str) -> str:
    """Return the names in the text of a defence, without settings.

    Args:
        text: A defence as `make_defense` takes it.

    Returns:
        The names, joined with a plus.

    >>> short_name("refiner-paper:iterations=5+none")
    'refiner-paper+none'
    """
    return "+".join(link.partition(":")[0] for link in parse_chain(DEFENSES, text))
