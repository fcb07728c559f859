"""The most thorough search that fits into a budget: what is scaled down, and in which order."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from refiner.audit.duration import time_text
from refiner.errors import DataError, Description
from refiner.recommendation.candidates import KEPT_LONGEST
from refiner.recommendation.cost import AttackCost
from refiner.recommendation.search_plan import Rung

# A rung before the last has so much of its victims and iterations, and so many of the candidates go on.
_EARLIER = ((1 / 4, 1 / 8, 1 / 2), (1 / 2, 1 / 3, 1 / 2))
_LEAST_VICTIMS, _LEAST_ITERATIONS, _LEAST_KEPT = 4, 30, 2
MOST_RUNGS = len(_EARLIER) + 1
_MOST_ITERATIONS = 4000
# The offered budget is longer than the estimate, which varies by about as much.
_MARGIN = 1.25


@dataclass(frozen=True)
class Scale:
    """How thorough a search is."""

    candidates: tuple[str, ...]
    attacks: tuple[str, ...]
    victims: int
    """Clients of the last rung."""
    public: int
    """Images that attacks learn from."""
    iterations: int = _MOST_ITERATIONS
    """Iterations in the last rung."""
    rungs: int = MOST_RUNGS
    is_tuned: bool = True
    """Whether attacks are tuned in the last rung."""

    @property
    def plan_rungs(self) -> tuple[Rung, ...]:
        """The rungs: each measures more thoroughly, and fewer candidates."""
        rungs, left = [], len(self.candidates)
        for share, iteration_share, kept in _EARLIER[len(_EARLIER) + 1 - self.rungs :]:
            count = max(_LEAST_VICTIMS, round(share * self.victims))
            steps = max(min(self.iterations, _LEAST_ITERATIONS), round(iteration_share * self.iterations))
            rungs.append(Rung(min(count, self.victims), steps, left))
            left = min(left, max(_LEAST_KEPT, math.ceil(kept * left)))
        return (*rungs, Rung(self.victims, self.iterations, left))

    def seconds(self, costs: Mapping[str, AttackCost]) -> float:
        """Return about how long the search takes if every attack works."""
        rungs = self.plan_rungs
        return sum(self._rung_seconds(rung, costs, is_last=rung is rungs[-1]) for rung in rungs)

    def candidate_seconds(self, costs: Mapping[str, AttackCost]) -> float:
        """Return about how long the last rung takes for one more candidate."""
        last = self.plan_rungs[-1]
        one = replace(last, candidates=1)
        return self._rung_seconds(one, costs, is_last=True) - self._rung_seconds(
            replace(last, candidates=0), costs, is_last=True
        )

    def _rung_seconds(self, rung: Rung, costs: Mapping[str, AttackCost], is_last: bool) -> float:
        """The time of a rung; which candidates reach it is not known, so that the slowest are counted."""
        seconds, runs = 0.0, rung.candidates + 1  # undefended uploads are attacked as well
        for name in self.attacks:
            cost = costs.get(name, AttackCost())
            tuned = cost.tuning_runs if is_last and self.is_tuned else 0.0
            victims = rung.victims + cost.public_runs + tuned
            uploads = sorted((cost.uploads.get(each, 0.0) for each in self.candidates), reverse=True)
            learned = cost.uploads.get("none", 0.0) + sum(uploads[: rung.candidates])
            iterations = cost.iterations or rung.iterations
            seconds += runs * (victims * iterations * cost.iteration + cost.audit)
            seconds += self.public * learned
        return seconds


def fit_scale(
    full: Scale,
    budget: float,
    costs: Mapping[str, AttackCost],
    *,
    keep_candidates: bool = False,
    keep_attacks: bool = False,
) -> Scale:
    """Return the most thorough search that a budget allows.

    It is scaled down step by step, first what matters least. As soon as it fits, steps that turn out not to
    have been necessary are taken back, the last one first. At least two defences, the control, and one attack
    that applies are left.

    Args:
        full: The search that an unlimited budget allows.
        budget: The seconds to spend.
        costs: What attacks take on this machine.
        keep_candidates: Whether no candidate may be left out, as the user named them.
        keep_attacks: The same for attacks.

    Returns:
        The search. The same arguments give the same search.

    Raises:
        DataError: Not even the smallest search fits; it names the budget that does.

    >>> slow = {"linear": AttackCost(uploads=dict.fromkeys(("none", "refiner", "gq:bits=8"), 0.01))}
    >>> full = Scale(("gq:bits=8", "refiner"), ("linear",), victims=64, public=3000)
    >>> fit_scale(full, 100, slow).public
    1000
    >>> fit_scale(full, 1, slow)
    Traceback (most recent call last):
    refiner.errors.DataError: budget = 1 s: expected at least 12s, as the smallest search takes about 9 s \
(2 defences against linear)
    """
    scale, taken = full, []
    for step in _steps(full, costs, keep_candidates, keep_attacks):
        if scale.seconds(costs) <= budget:
            break
        smaller = replace(scale, **step)
        if smaller.seconds(costs) < scale.seconds(costs):
            taken.append((step, {name: getattr(scale, name) for name in step}))
            scale = smaller
    seconds = scale.seconds(costs)
    if seconds > budget:
        attacks = ", ".join(name for name in scale.attacks if name in costs)
        raise DataError(
            field="budget",
            value=Description(time_text(budget)),
            expected=f"at least {_budget_text(_MARGIN * seconds)}, as the smallest search takes about "
            f"{time_text(seconds)} ({len(scale.candidates)} defences against {attacks})",
        )
    for step, before in reversed(taken):
        larger = replace(scale, **before)
        is_last = all(getattr(scale, name) == value for name, value in step.items())
        if is_last and "attacks" not in step and larger.seconds(costs) <= budget:
            scale = larger
    return scale


def _steps(
    full: Scale, costs: Mapping[str, AttackCost], keep_candidates: bool, keep_attacks: bool
) -> list[dict[str, Any]]:
    """What is scaled down, in this order; each step sets the values of some fields.

    An attack by optimisation reveals little in fewer than 200 iterations: rather than that it is left out.
    """

    def depth(*pairs: tuple[int, int]) -> list[dict[str, Any]]:
        return [
            {"victims": min(victims, full.victims), "iterations": iterations} for victims, iterations in pairs
        ]

    def public(count: int) -> list[dict[str, Any]]:
        return [{"public": count}] if count < full.public else []

    def candidates(count: int) -> list[dict[str, Any]]:
        if keep_candidates or count >= len(full.candidates):
            return []
        rank = {name: number for number, name in enumerate(KEPT_LONGEST)}
        kept = sorted(full.candidates, key=lambda name: rank.get(name, len(rank)))[:count]
        return [{"candidates": tuple(name for name in full.candidates if name in kept)}]

    def slowest(name: str) -> float:
        return replace(full, attacks=(name,), public=min(full.public, 300)).seconds(costs)

    attacks: list[dict[str, Any]] = []
    left = sorted((name for name in full.attacks if name in costs), key=slowest)
    while len(left) > 1 and not keep_attacks:
        left = left[:-1]
        attacks.append({"attacks": tuple(name for name in full.attacks if name in left)})
    # Fewer rungs save time only where learning or few candidates dominate, so that they are tried again.
    rungs = [{"rungs": 2}, {"rungs": 1}]
    return [
        *depth((64, 2000), (48, 1000), (32, 1000), (32, 500), (32, 300), (24, 300), (16, 200)),
        *public(1000),
        *candidates(6),
        *public(500),
        *candidates(4),
        *rungs,
        {"is_tuned": False},
        *attacks,
        *rungs,
        *public(300),
        *candidates(3),
        *candidates(2),
        *rungs,
        *depth((16, 50), (8, 50), (4, 30)),
    ]


def scaled_down(full: Scale, scale: Scale, costs: Mapping[str, AttackCost]) -> tuple[str, ...]:
    """Return what was scaled down, in words."""
    texts = []
    left_out = [name for name in full.attacks if name not in scale.attacks and name in costs]
    if left_out:
        texts.append(f"{', '.join(left_out)} left out as the slowest")
    if len(scale.candidates) < len(full.candidates):
        count = f"{len(scale.candidates)} of {len(full.candidates)} defences"
        texts.append(f"{count} ({'; '.join(scale.candidates)})")
    if scale.public < full.public:
        texts.append(f"learning from {scale.public:,} of {full.public:,} images")
    if scale.victims < full.victims:
        texts.append(f"{scale.victims} of {full.victims} clients")
    known = [costs[name] for name in scale.attacks if name in costs]
    iterate = any(cost.iteration and cost.iterations is None for cost in known)
    if iterate and scale.iterations < full.iterations:
        texts.append(f"{scale.iterations:,} of {full.iterations:,} iterations")
    if scale.rungs < full.rungs:
        texts.append(f"{scale.rungs} of {full.rungs} rungs")
    if iterate and full.is_tuned and not scale.is_tuned:
        texts.append("attacks not tuned")
    return tuple(texts)


def _budget_text(seconds: float) -> str:
    """The time rounded up, as an option's value.

    >>> _budget_text(41.2), _budget_text(200)
    ('42s', '4min')
    """
    return f"{math.ceil(seconds)}s" if seconds <= 90 else f"{math.ceil(seconds / 60)}min"


def spare_candidates(scale: Scale, budget: float, costs: Mapping[str, AttackCost]) -> int:
    """Return for how many more candidates the budget leaves time in the last rung."""
    each: float = scale.candidate_seconds(costs)
    most = len(scale.candidates)
    return most if each <= 0 else min(most, int((budget - scale.seconds(costs)) / each))
