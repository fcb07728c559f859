"""Attacks that rebuild a client's batch from what it uploads."""

from refiner.attacks.base import Attack, Reconstruction
from refiner.attacks.dlg import DLG
from refiner.attacks.ggl import GGL
from refiner.attacks.gradinversion import GradInversion
from refiner.attacks.idlg import IDLG
from refiner.attacks.inverting import InvertingGradients
from refiner.attacks.label_inference import infer_labels
from refiner.attacks.observation import Observation
from refiner.attacks.sweep import Sweep, tunable
from refiner.attacks.threat_model import ThreatModel
from refiner.registry import Registry, check_settings_class, make_by_name

ATTACKS: Registry[Attack] = Registry(
    "refiner.attacks",
    {
        "dlg": DLG,
        "idlg": IDLG,
        "inverting": InvertingGradients,
        "inverting-paper": InvertingGradients.paper,
        "gradinversion": GradInversion,
        "gradinversion-paper": GradInversion.paper,
        "ggl": GGL,
        "ggl-paper": GGL.paper,
    },
    check=check_settings_class(Attack),
)
"""Every attack by name; `inverting-paper` and its like have the settings of the paper's attack table."""

__all__ = [
    "ATTACKS",
    "DLG",
    "GGL",
    "IDLG",
    "Attack",
    "GradInversion",
    "InvertingGradients",
    "Observation",
    "Reconstruction",
    "Sweep",
    "ThreatModel",
    "infer_labels",
    "make_attack",
    "tunable",
]


def make_attack(text: str, **settings: object) -> Attack:
    """An attack by its name, one of `ATTACKS`, with settings: `NAME` or `NAME:setting=value,…`.

    >>> make_attack("inverting:total_variation=1,signed=false", iterations=10).settings()["iterations"]
    10
    >>> make_attack("invert")
    Traceback (most recent call last):
    refiner.errors.DataError: attack = 'invert': unknown; did you mean 'inverting'? Known: dlg, ...
    """
    return make_by_name(ATTACKS, "attack", text, **settings)
