"""Defences ranked by what they hide and what they cost: the answer to "which one do I take?"."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from refiner.audit.control import UNDEFENDED
from refiner.audit.display_names import pair_names
from refiner.audit.report_table import OR_IDENTIFIABLE, format_interval, identifiable_cell, share_cell
from refiner.audit.result import AuditResult
from refiner.audit.result_records import UploadCost
from refiner.audit.summary import by_defense, strongest_attack
from refiner.metrics import Level
from refiner.report import Cell

COLUMNS = (
    "defence",
    "verdict",
    "visible",
    OR_IDENTIFIABLE,
    "strongest attack",
    "PSNR, dB",
    "gradient error",
    "PMM",
    "time per upload",
    "upload bytes",
)
# A first choice whose interval leaves more visible images possible says so; 16 images or more leave fewer.
_MOST_UNSEEN = 0.2
_SAFEST_FIRST: tuple[Level, ...] = ("neither", "identifiable", "visible", "no verdict")


@dataclass(frozen=True, eq=False)
class RankedDefense:
    """A defence, its strongest attack, and what it costs.

    Args:
        name: Name of the defence, with the settings that differ from its defaults.
        attack: Name of its strongest attack, likewise.
        strongest: The result of that attack.
        cost: Gradient error and time of an upload; None if no audit of the defence measured them.
        pmm: Accuracy of a training with the defence, in per cent of one without; None if it was not measured.
        was_challenged: Whether one of its attacks shows images without a defence.
    """

    name: str
    attack: str
    strongest: AuditResult
    cost: UploadCost | None
    pmm: float | None = None
    was_challenged: bool = True

    @property
    def verdict(self) -> Level:
        """The verdict by the strongest attack."""
        return self.strongest.verdict.level


def rank_defenses(
    results: Sequence[AuditResult], pmm: Mapping[str, float] | None = None
) -> list[RankedDefense]:
    """Return the defences: those that hide most first, and of equal verdicts the cheapest first.

    The price is the error of the uploads, then the time of one, then its size.

    Args:
        results: The audits of all defences.
        pmm: PMM in per cent, by the name of the defence, where it was measured.

    Returns:
        One entry per defence; defences on which there is no verdict come last.
    """
    attacks = {id(result): attack for (_, attack), result in zip(pair_names(results), results, strict=True)}
    costs = [result.cost for result in results if result.cost is not None]
    undefended_seconds = min((cost.undefended_seconds for cost in costs), default=math.nan)
    ranked = []
    for name, audits in by_defense(results).items():
        strongest = strongest_attack(audits)
        cost = _joint_cost([audit.cost for audit in audits if audit.cost is not None], undefended_seconds)
        if cost is not None and strongest.defense == UNDEFENDED:
            cost = replace(cost, seconds=cost.undefended_seconds)
        known = None if pmm is None else pmm.get(name)
        challenged = any(audit.control is not None and audit.control.level == "visible" for audit in audits)
        ranked.append(RankedDefense(name, attacks[id(strongest)], strongest, cost, known, challenged))
    return sorted(ranked, key=_rank)


def _joint_cost(costs: Sequence[UploadCost], undefended_seconds: float) -> UploadCost | None:
    """Return the cost of a defence from all its audits: the shortest times are the least disturbed ones."""
    if not costs:
        return None
    seconds = min(cost.seconds for cost in costs)
    return UploadCost(costs[0].gradient_error, seconds, min(seconds, undefended_seconds))


def _rank(defense: RankedDefense) -> tuple[int, float, float, int]:
    cost = defense.cost
    return (
        _SAFEST_FIRST.index(defense.verdict),
        math.inf if cost is None else cost.gradient_error,
        math.inf if cost is None else cost.relative_time,
        defense.strongest.upload_bytes or 0,
    )


def first_choice(ranked: Sequence[RankedDefense]) -> str:
    """Return which defence to take, as a sentence; empty unless several defences were compared."""
    defended = [each for each in ranked if each.strongest.defense != UNDEFENDED]
    if len(defended) < 2:
        return ""
    best = defended[0]
    hiding = [each for each in defended if each.verdict == "neither"]
    if hiding and not best.was_challenged:
        return "There is no first choice: no attack tried shows images even without a defence."
    if hiding:
        if len(hiding) == 1:
            why = f"the only one of {len(defended)} defences that hides"
        else:
            why = f"one of {len(hiding)} defences that hide"
        how = "" if len(hiding) == 1 or best.cost is None else ", with the smallest gradient error"
        text = f"First choice: {best.name}, {why} the images from every attack tried{how}."
        possible = best.strongest.verdict.visible.high
        if possible > _MOST_UNSEEN:
            text += f" Audit more images: of so few, up to {100 * possible:.0f} % might still be visible."
        return text
    if best.verdict == "no verdict":
        return f"There is no verdict on any of the {len(defended)} defences."
    return f"None of the {len(defended)} defences hides the images from every attack tried."


def ranking_rows(ranked: Sequence[RankedDefense]) -> list[list[str | Cell]]:
    """Return a row for every defence, in the order of `COLUMNS`."""
    rows: list[list[str | Cell]] = []
    for each in ranked:
        verdict, size = each.strongest.verdict, each.strongest.upload_bytes
        rows.append(
            [
                each.name,
                Cell(verdict=verdict.level),
                share_cell(verdict.visible),
                identifiable_cell(each.strongest),
                each.attack,
                format_interval(each.strongest.means.get("psnr"), 1),
                *_cost_cells(each.cost, each.pmm),
                "–" if size is None else f"{size:,}",
            ]
        )
    return rows


def _cost_cells(cost: UploadCost | None, pmm: float | None) -> tuple[Cell, Cell, Cell]:
    """Return the cells of gradient error, PMM and time."""
    known = Cell("–") if pmm is None or math.isnan(pmm) else Cell(f"{pmm:.1f} %", value=pmm)
    if cost is None:
        return Cell("–"), known, Cell("–")
    time = f"{cost.relative_time:.1f}× ({_duration(cost.seconds)})"
    return (
        Cell(f"{cost.gradient_error:.3g}", value=cost.gradient_error),
        known,
        Cell(time, value=cost.relative_time),
    )


def _duration(seconds: float) -> str:
    """Return a duration as text.

    >>> _duration(0.00213), _duration(0.25), _duration(3.2)
    ('2.1 ms', '250 ms', '3.2 s')
    """
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{1000 * seconds:.{0 if seconds >= 0.01 else 1}f} ms"


def ranking_note(ranked: Sequence[RankedDefense]) -> str:
    """Return the text below the table of the ranked defences."""
    text = (
        "Defences that hide most come first, of equal verdicts those with the smallest gradient error. Each "
        "row has the strongest attack on the defence. Gradient error: distance of the uploads from the real "
        "gradients, relative to these, mean over the clients at this batch size. Time per upload: in "
        "multiples of the time without a defence. "
    )
    if all(each.pmm is None for each in ranked):
        text += "PMM, the accuracy kept in a training, was not measured: see `refiner audit --training`. "
    else:
        text += "PMM: accuracy of a training in per cent of one without a defence. "
    if any(each.cost is None for each in ranked):
        text += "Results of an earlier version have neither gradient error nor time. "
    return text.strip()
