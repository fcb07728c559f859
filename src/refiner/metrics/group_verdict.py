"""The verdict for all images of one defence and attack."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from refiner.errors import DataError
from refiner.metrics.shares import Share
from refiner.metrics.thresholds import PAPER_THRESHOLDS, Thresholds
from refiner.metrics.verdict import Level, Verdict


@dataclass(frozen=True)
class GroupVerdict:
    """The verdict for all images of one defence and attack."""

    level: Level
    visible: Share
    """The share of visible images."""
    identifiable: Share
    """The share of images that are visible or identified, including `by_chance`."""
    by_chance: int
    """Images that are identified, not visible, if chance may give as many; the level does not count them."""
    reason: str
    """Why, in one line."""

    def __str__(self) -> str:
        return f"{self.level} ({self.reason})"


def judge_group(
    verdicts: Sequence[Verdict], thresholds: Thresholds = PAPER_THRESHOLDS, clients: int | None = None
) -> GroupVerdict:
    """Return the verdict for all images of a defence.

    Visible: at least 5 % of the images are. Identifiable: fewer are visible, but some image is, or images are
    identified. Otherwise neither. Chance, too, identifies an image now and then: images that are identified
    but not visible count only if they are more than chance gives in 99 of 100 such groups.

    Args:
        verdicts: The verdict of each image.
        thresholds: The thresholds with which the images were judged.
        clients: How many clients the images belong to; by default every image has its own (see `Share.of`).

    Returns:
        The level, and the shares of visible and identifiable images with their 95 % intervals (Wilson).

    Raises:
        DataError: There are no verdicts.

    >>> from refiner.metrics import judge
    >>> verdict = judge_group([judge(20.0, 0.6), *[judge(10.0, 0.1, rank=7, candidates=1000)] * 9])
    >>> verdict.level, verdict.visible.count, round(verdict.visible.high, 2), verdict.reason
    ('visible', 1, 0.4, '1 of 10 visible (10 %), no other identifiable')
    """
    if not verdicts:
        raise DataError(
            "verdicts: none, expected one or more images",
            field="verdicts",
            value=0,
            expected="one or more images",
        )
    total = len(verdicts)
    visible = sum(verdict.measured == "visible" for verdict in verdicts)
    identified = sum(verdict.measured == "identifiable" for verdict in verdicts)
    chances = [verdict.chance for verdict in verdicts if verdict.chance is not None]
    explained = most_by_chance(len(chances), max(chances)) if chances else 0
    by_chance = identified if identified <= explained else 0
    level: Level = "neither"
    if visible and visible >= thresholds.visible_share * total:
        level = "visible"
    elif visible or identified > by_chance:
        level = "identifiable"
    reason = _reason(visible, identified, by_chance, total, bool(chances))
    return GroupVerdict(
        level,
        Share.of(visible, total, clients),
        Share.of(visible + identified, total, clients),
        by_chance,
        reason,
    )


def _reason(visible: int, identified: int, by_chance: int, total: int, tried: bool) -> str:
    percent = f" ({100 * visible / total:.3g} %)"
    reason = f"{visible or 'none'} of {total} visible{percent if 0 < visible < total else ''}"
    if visible == total:
        return reason
    if not tried:
        return f"{reason}, identification not tested"
    if not identified:
        return f"{reason}, {'no other' if visible else 'none'} identifiable"
    others = "" if not visible else " other" if identified == 1 else " others"
    reason += f", {identified}{others} identifiable ({100 * identified / total:.3g} %)"
    return f"{reason}, no more than chance may give" if by_chance else reason


def most_by_chance(count: int, chance: float, tail: float = 0.01) -> int:
    """Return the lowest k such that more than k of `count` images occur by chance with probability ≤ `tail`.

    Args:
        count: The images.
        chance: The probability of each.
        tail: How improbable more of them must be.

    >>> most_by_chance(20, 1 / 220)
    1
    """
    if chance >= 1:
        return count
    upper_tail, k, log_odds = 1.0, 0, math.log(chance) - math.log1p(-chance)
    log_mass = count * math.log1p(-chance)
    while k < count:
        upper_tail -= math.exp(log_mass)
        if upper_tail <= tail + 1e-12:
            break
        log_mass += math.log((count - k) / (k + 1)) + log_odds
        k += 1
    return k
