"""Inference attacks: what uploads tell about a client's data without a reconstruction.

Membership: was a candidate among the data? To use an attack: `make_membership_attack` or its class, then
`MembershipAttack.score`; `refiner.audit.audit_membership` runs and judges one. Attributes: which property do
a client's samples have that is not the task? `AttributeInference`, and `refiner.audit.audit_attribute`.
"""

from refiner.inference.alignment import Alignment
from refiner.inference.attribute import AttributeInference, AttributePrediction
from refiner.inference.attribute_scores import (
    Interval,
    auc_interval,
    balanced_accuracy,
    explained_variance,
)
from refiner.inference.label_pairs import pair_by_label
from refiner.inference.likelihood_match import LikelihoodMatch
from refiner.inference.lira import LiRA
from refiner.inference.loss_threshold import LossThreshold
from refiner.inference.membership import Candidates, MembershipAttack, RunFacts
from refiner.inference.public_attributes import PublicAttributes
from refiner.inference.white_box import WhiteBox
from refiner.registry import Registry, check_settings_class, make_by_name

MEMBERSHIP: Registry[MembershipAttack] = Registry(
    "refiner.membership",
    {
        "alignment": Alignment,
        "likelihood": LikelihoodMatch,
        "loss": LossThreshold,
        "lira": LiRA,
        "white-box": WhiteBox,
    },
    check=check_settings_class(MembershipAttack),
)
"""Every membership attack by name."""

__all__ = [
    "MEMBERSHIP",
    "Alignment",
    "AttributeInference",
    "AttributePrediction",
    "Candidates",
    "Interval",
    "LiRA",
    "LikelihoodMatch",
    "LossThreshold",
    "MembershipAttack",
    "PublicAttributes",
    "RunFacts",
    "WhiteBox",
    "auc_interval",
    "balanced_accuracy",
    "explained_variance",
    "make_membership_attack",
    "pair_by_label",
]


def make_membership_attack(text: str, **settings: object) -> MembershipAttack:
    """Return a membership attack by its name and settings.

    Args:
        text: `NAME` or `NAME:setting=value,…`, with a name of `MEMBERSHIP`.
        settings: Further settings; those in `text` take precedence.

    Returns:
        The attack.

    Raises:
        DataError: The attack or a setting is unknown.
        SettingError: A setting is out of its range.

    >>> make_membership_attack("alignment:relative=false")
    Alignment(relative=False, images=1000)
    """
    return make_by_name(MEMBERSHIP, "attack", text, **settings)
