"""The verdict of a membership audit: intervals of the AUC against chance and the blind baseline."""

from typing import Literal, NamedTuple

from refiner.metrics import Estimate

MembershipLevel = Literal["found", "reversed", "not found", "no verdict"]
CHANCE = 0.5
"""The AUC of scores that say nothing."""
OTHER_LABELS = (
    "non-members have other labels than members, so that an AUC away from 0.5 may only tell classes apart"
)


class MembershipVerdict(NamedTuple):
    """A verdict, and why there is none."""

    level: MembershipLevel
    reason: str
    """Why there is no verdict; empty if there is one."""


def membership_verdict(
    auc: Estimate, undefended: Estimate, blind: Estimate | None, *, same_labels: bool
) -> MembershipVerdict:
    """Return the verdict about one attack on the uploads of one defence.

    "found": the interval of the AUC is above 0.5; where that of the blind baseline is above 0.5 too, it must
    be above the baseline's. "reversed": it is below 0.5 and below the baseline's interval, so that members
    score low, and an attacker who suspects it turns the scores around. "not found": neither, though the
    attack finds members in undefended uploads. "no verdict": a single client has no interval; non-members
    have other labels than members; the baseline explains what is found; or the attack finds no members in
    undefended uploads either.

    Args:
        auc: The AUC of the attack on the defence's uploads.
        undefended: That on undefended uploads.
        blind: That with other clients' undefended uploads; None for a single client.
        same_labels: Whether the non-members of every client have the labels of its members.

    Returns:
        The verdict with its reason.

    >>> fair = Estimate(0.5, 0.45, 0.55)
    >>> membership_verdict(Estimate(0.9, 0.8, 0.95), Estimate(1.0, 0.9, 1.0), fair, same_labels=True).level
    'found'
    """
    if auc.low is None or auc.high is None or undefended.low is None:
        return MembershipVerdict("no verdict", "a single client has no interval")
    if not same_labels:
        return MembershipVerdict("no verdict", OTHER_LABELS)
    upper = lower = CHANCE
    if blind is not None and blind.low is not None and blind.high is not None:
        upper = blind.high if blind.low > CHANCE else CHANCE
        lower = min(CHANCE, blind.low)
    if auc.low > upper:
        return MembershipVerdict("found", "")
    if auc.high < lower:
        return MembershipVerdict("reversed", "")
    if auc.low > CHANCE or auc.high < CHANCE:
        return MembershipVerdict("no verdict", "the AUC is explained by the blind AUC")
    if undefended.low <= upper:
        return MembershipVerdict("no verdict", "the attack finds no members in undefended uploads either")
    return MembershipVerdict("not found", "")
