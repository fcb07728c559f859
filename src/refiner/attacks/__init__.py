"""Attacks that reconstruct a client's batch from its upload.

To use one: `make_attack` or its class, then `Attack.reconstruct`. To write one: see `Attack`, and
`MatchingAttack` for an attack that minimises a distance between gradients.
"""

from refiner.attacks.base import Attack
from refiner.attacks.changed_model.folds import Folds
from refiner.attacks.changed_model.imprint import Imprint
from refiner.attacks.changed_model.loki import Loki
from refiner.attacks.changed_model.trap_weights import TrapWeights
from refiner.attacks.closed_form.activations import ActivationInversion
from refiner.attacks.closed_form.analytic import AnalyticReconstruction
from refiner.attacks.closed_form.april import April
from refiner.attacks.closed_form.spear import Spear
from refiner.attacks.label_inference import infer_labels
from refiner.attacks.learning.learned import LearnedReconstruction
from refiner.attacks.learning.linear import LinearReconstruction
from refiner.attacks.matching.distance import Distance
from refiner.attacks.matching.dlg import DLG
from refiner.attacks.matching.ggl import GGL
from refiner.attacks.matching.gradient_matching import GradientMatching
from refiner.attacks.matching.gradinversion import GradInversion
from refiner.attacks.matching.idlg import IDLG
from refiner.attacks.matching.inverting import InvertingGradients
from refiner.attacks.matching.matching_attack import MatchingAttack
from refiner.attacks.matching.parametrisation import Latent, Parametrisation, Pixels
from refiner.attacks.matching.priors import Guess, Prior, TotalVariation
from refiner.attacks.matching.sweep import Sweep, tunable
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.simulation import KnownDefense, SimulatedUploads, Simulator
from refiner.attacks.stages.adaptive import Adaptive
from refiner.attacks.stages.denoised import Denoised
from refiner.attacks.threat_model import Capability, ThreatModel
from refiner.errors import DataError
from refiner.registry import Registry, check_settings_class, make_by_name, parse_chain

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
        "april": April,
        "learned": LearnedReconstruction,
        "denoiser": Denoised,
        "adaptive": Adaptive,
        "imprint": Imprint,
        "loki": Loki,
        "trap-weights": TrapWeights,
        "folds": Folds,
        "spear": Spear,
        "activations": ActivationInversion,
    },
    check=check_settings_class(Attack),
)
"""Every attack by name. Those that end in `-paper` have the settings of the Refiner paper's attack table."""

STAGES = (Denoised.stage, Adaptive.stage)
"""The attacks that can follow another one, as `ATTACK+STAGE`."""

__all__ = [
    "ATTACKS",
    "DLG",
    "GGL",
    "IDLG",
    "ActivationInversion",
    "Adaptive",
    "AnalyticReconstruction",
    "April",
    "Attack",
    "Capability",
    "Denoised",
    "Distance",
    "Folds",
    "GradInversion",
    "GradientMatching",
    "Guess",
    "Imprint",
    "InvertingGradients",
    "KnownDefense",
    "Latent",
    "LearnedReconstruction",
    "LinearReconstruction",
    "Loki",
    "MatchingAttack",
    "Observation",
    "Parametrisation",
    "Pixels",
    "Prior",
    "Reconstruction",
    "RunOptions",
    "SimulatedUploads",
    "Simulator",
    "Spear",
    "Sweep",
    "ThreatModel",
    "TotalVariation",
    "TrapWeights",
    "attack_with_iterations",
    "infer_labels",
    "make_attack",
    "tunable",
]


def make_attack(text: str, **settings: object) -> Attack:
    """Return an attack by its name and settings.

    Args:
        text: `NAME` or `NAME:setting=value,…`, with a name of `ATTACKS`. `ATTACK+denoiser` lets a denoiser
            follow another attack: `inverting:iterations=500+denoiser:images=200`.
        settings: Further settings, of the first attack; those in `text` take precedence.

    Returns:
        The attack.

    Raises:
        DataError: The attack or a setting is unknown.
        SettingError: A setting is out of its range.

    >>> make_attack("inverting:total_variation=1,signed=false", iterations=10).settings()["iterations"]
    10
    >>> make_attack("idlg:lr=0.5+denoiser:images=200").settings()["denoiser.images"]
    200
    >>> make_attack("invert")
    Traceback (most recent call last):
    refiner.errors.DataError: attack = 'invert': unknown; did you mean 'inverting'? Known: dlg, ...
    """
    first, *rest = parse_chain(ATTACKS, text)
    attack = make_by_name(ATTACKS, "attack", first, **settings)
    for link in rest:
        if (name := link.partition(":")[0]) in ATTACKS and name not in STAGES:
            raise DataError(
                field="attack",
                value=text,
                problem=f"only {' and '.join(STAGES)} can follow another attack, as ATTACK+denoiser",
            )
        attack = make_by_name(ATTACKS, "attack", link, attack=attack)
    return attack


def attack_with_iterations(text: str, iterations: int | None) -> Attack:
    """Return an attack by its name, with so many iterations if it iterates.

    Args:
        text: As for `make_attack`; iterations in it take precedence.
        iterations: The iterations; None for the attack's own.

    Returns:
        The attack.

    Raises:
        RefinerError: As `make_attack`.

    >>> attack_with_iterations("inverting", 7).settings()["iterations"]
    7
    >>> attack_with_iterations("adaptive", 7).settings()["inverting.iterations"]
    7
    >>> attack_with_iterations("linear", 7).name
    'linear'
    """
    attack = make_attack(text)
    # A chain has the settings of its parts, as "inverting.iterations".
    names = {name.rpartition(".")[2] for name in attack.settings()}
    if iterations is None or "iterations" not in names:
        return attack
    if text.partition("+")[0].partition(":")[0] in STAGES:
        text = f"{InvertingGradients.name}+{text}"  # what a stage alone follows
    return make_attack(text, iterations=iterations)
