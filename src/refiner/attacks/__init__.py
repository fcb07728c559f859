"""Attacks that rebuild a client's batch from what it uploads."""

from refiner.attacks.base import Attack, Observation, Reconstruction, ThreatModel
from refiner.attacks.ggl import GGL
from refiner.attacks.gradinversion import GradInversion
from refiner.attacks.idlg import IDLG
from refiner.attacks.inverting import InvertingGradients
from refiner.attacks.labels import infer_labels
from refiner.checks import nearest

ATTACKS: dict[str, type[Attack]] = {a.name: a for a in (IDLG, InvertingGradients, GradInversion, GGL)}

__all__ = [
    "ATTACKS",
    "GGL",
    "IDLG",
    "Attack",
    "GradInversion",
    "InvertingGradients",
    "Observation",
    "Reconstruction",
    "ThreatModel",
    "infer_labels",
    "make_attack",
]


def make_attack(name: str, **settings: object) -> Attack:
    """An attack by its name.

    >>> make_attack("inverting", iterations=10).settings()["iterations"]
    10
    >>> make_attack("invert")
    Traceback (most recent call last):
    refiner.errors.DataError: attack = 'invert': unknown; did you mean 'inverting'? Known: idlg, ...
    """
    if name not in ATTACKS:
        raise nearest(name, ATTACKS, "attack")
    return ATTACKS[name](**settings)
