"""Attacks that reconstruct a client's batch from its upload.

To use one: `make_attack` or its class, then `Attack.reconstruct`. To write one: see `Attack`, and
`MatchingAttack` for an attack that minimises a distance between gradients.
"""

from refiner.attacks.analytic import AnalyticReconstruction
from refiner.attacks.base import Attack, Reconstruction, RunOptions
from refiner.attacks.distance import Distance
from refiner.attacks.dlg import DLG
from refiner.attacks.ggl import GGL
from refiner.attacks.gradient_matching import GradientMatching
from refiner.attacks.gradinversion import GradInversion
from refiner.attacks.idlg import IDLG
from refiner.attacks.inverting import InvertingGradients
from refiner.attacks.label_inference import infer_labels
from refiner.attacks.linear import LinearReconstruction
from refiner.attacks.matching_attack import MatchingAttack
from refiner.attacks.observation import Observation
from refiner.attacks.parametrisation import Latent, Parametrisation, Pixels
from refiner.attacks.priors import Guess, Prior, TotalVariation
from refiner.attacks.simulation import SimulatedUploads, Simulator
from refiner.attacks.sweep import Sweep, tunable
from refiner.attacks.threat_model import Capability, ThreatModel
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
        "linear": LinearReconstruction,
        "analytic": AnalyticReconstruction,
    },
    check=check_settings_class(Attack),
)
"""Every attack by name. Those that end in `-paper` have the settings of the Refiner paper's attack table."""

__all__ = [
    "ATTACKS",
    "DLG",
    "GGL",
    "IDLG",
    "AnalyticReconstruction",
    "Attack",
    "Capability",
    "Distance",
    "GradInversion",
    "GradientMatching",
    "Guess",
    "InvertingGradients",
    "Latent",
    "LinearReconstruction",
    "MatchingAttack",
    "Observation",
    "Parametrisation",
    "Pixels",
    "Prior",
    "Reconstruction",
    "RunOptions",
    "SimulatedUploads",
    "Simulator",
    "Sweep",
    "ThreatModel",
    "TotalVariation",
    "infer_labels",
    "make_attack",
    "tunable",
]


def make_attack(text: str, **settings: object) -> Attack:
    """Return an attack by its name and settings.

    Args:
        text: `NAME` or `NAME:setting=value,…`, with a name of `ATTACKS`.
        settings: Further settings; those in `text` take precedence.

    Returns:
        The attack.

    Raises:
        DataError: The attack or a setting is unknown.
        SettingError: A setting is out of its range.

    >>> make_attack("inverting:total_variation=1,signed=false", iterations=10).settings()["iterations"]
    10
    >>> make_attack("invert")
    Traceback (most recent call last):
    refiner.errors.DataError: attack = 'invert': unknown; did you mean 'inverting'? Known: dlg, ...
    """
    return make_by_name(ATTACKS, "attack", text, **settings)
