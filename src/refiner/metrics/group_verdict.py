"""The verdict for all victims of one defence and attack."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from refiner.errors import DataError
from refiner.metrics.thresholds import PAPER_THRESHOLDS, Thresholds
from refiner.metrics.verdict import LEVELS, Level, Verdict


@dataclass(frozen=True)
class GroupVerdict:
    """The verdict for all victims of one defence and attack."""

    level: Level
    exposed: int
    """The number of exposed victims."""
    borderline: int
    protected: int
    by_chance: int
    """Victims exposed by identification alone, if chance explains them; the level does not count them."""
    reason: str

    @property
    def share(self) -> float:
        """The fraction of exposed victims, including those that chance explains."""
        return self.exposed / (self.exposed + self.borderline + self.protected)


def judge_group(verdicts: Sequence[Verdict], thresholds: Thresholds = PAPER_THRESHOLDS) -> GroupVerdict:
    """Return the verdict for all victims of a defence.

    Exposed: at least 5 % of the victims are. Borderline: any is, or at least 20 % are not protected.
    Otherwise protected. Identification exposes 1 % of the victims by chance; victims that it alone exposes
    count only if they are more than chance gives in 99 of 100 such groups.

    Args:
        verdicts: The verdict of each victim.
        thresholds: The thresholds with which the victims were judged.

    Returns:
        The level and the number of victims at each level.

    Raises:
        DataError: There are no verdicts.

    >>> from refiner.metrics import judge
    >>> judge_group([judge(20.0, 0.6), *[judge(10.0, 0.1)] * 9])
    GroupVerdict(level='exposed', exposed=1, borderline=0, protected=9, by_chance=0,
                 reason='1 of 10 exposed (10 %)')
    """
    if not verdicts:
        raise DataError(
            "verdicts: none, expected one or more victims",
            field="verdicts",
            value=0,
            expected="one or more victims",
        )
    total = len(verdicts)
    count = {level: sum(v.level == level for v in verdicts) for level in LEVELS}
    only_identified = sum(
        v.level == "exposed" and "exposed" not in (v.votes["psnr"], v.votes["ssim"]) for v in verdicts
    )
    tried = sum("identification" in v.votes for v in verdicts)
    by_chance = only_identified if only_identified <= _most_by_chance(tried, thresholds.identified) else 0
    exposed = count["exposed"] - by_chance
    level: Level = "protected"
    if exposed and exposed >= thresholds.exposed_share * total:
        level = "exposed"
    elif exposed or total - count["protected"] >= thresholds.borderline_share * total:
        level = "borderline"
    reason = f"{count['exposed']} of {total} exposed ({100 * count['exposed'] / total:.3g} %)"
    if count["borderline"]:
        reason += f", {count['borderline']} borderline"
    if by_chance:
        reason += f"; chance explains {by_chance} of the exposed"
    return GroupVerdict(level, count["exposed"], count["borderline"], count["protected"], by_chance, reason)


def _most_by_chance(count: int, chance: float, tail: float = 0.01) -> int:
    """The lowest k such that more than k of `count` victims occur by chance with probability ≤ `tail`."""
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
