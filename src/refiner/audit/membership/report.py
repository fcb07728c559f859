"""Tables and ROC curves of membership audits, and their page."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from refiner.audit.membership.result import MembershipAudit
from refiner.audit.membership.verdict import CHANCE
from refiner.audit.roc_series import client_roc_series
from refiner.report import Cell, Page, RocPlot, RocSeries, Section, Table, write_page

COLUMNS = (
    *("defence", "attack", "AUC", "95 % interval", "undefended", "blind", "balanced accuracy"),
    *("TPR at 1 % FPR", "TPR at 0.1 % FPR", "verdict"),
)
DEFINITIONS = (
    ("AUC", "The probability that a member scores higher than a non-member: 0.5 by chance, 1 for certainty."),
    ("undefended", "The same attack's AUC without a defence."),
    ("blind", "Its AUC with other clients' undefended uploads, which say nothing: 0.5 if the test is fair."),
    ("balanced accuracy", "Mean of the shares of members and non-members that are recognised, at a threshold "
     "that other clients chose."),
    ("TPR at 1 % FPR", "Members that are found while one non-member in a hundred is accused; only with 100 "
     "non-members or more. The band of the ROC curve is its 95 % interval, which resamples clients."),
    ("TPR at 0.1 % FPR", "While one in a thousand is accused; only with 1,000 non-members or more."),
    ("verdict", "Found: the interval of the AUC is above 0.5, and above that of the blind AUC where this is "
     "above 0.5 too. Reversed: it is below 0.5 and below that of the blind AUC, so that an attacker who "
     "suspects it turns the scores around. Not found: neither, though the attack finds members without a "
     "defence. No verdict: it does not; or the blind AUC explains what is found; or non-members have other "
     "labels than members; or a single client has no interval."),
)  # fmt: skip


def membership_rows(results: Sequence[MembershipAudit]) -> list[list[str | Cell]]:
    """Return a row for every defence and attack."""
    rows: list[list[str | Cell]] = []
    for result in results:
        auc, accuracy = result.auc, result.balanced_accuracy
        rates = [f"{100 * p.value:.1f} %" if result.has_enough_for(p) else "–" for p in result.tpr]
        rows.append(
            [
                result.defense,
                result.attack,
                f"{auc.value:.3f}",
                "–" if auc.low is None else f"{auc.low:.3f} to {auc.high:.3f}",
                f"{result.undefended.value:.3f}",
                "–" if result.blind is None else f"{result.blind.value:.3f}",
                "–" if accuracy is None else f"{accuracy.value:.3f}",
                *rates,
                result.level,
            ]
        )
    return rows


def strongest(results: Sequence[MembershipAudit]) -> list[MembershipAudit]:
    """Return the result of each defence against the attack that tells most about its clients.

    This is one that finds members, or finds them reversed, if any does; among several, that with the AUC
    furthest from 0.5.
    """
    found: dict[str, MembershipAudit] = {}
    for result in results:
        known = found.get(result.defense)
        if known is None or _strength(result) > _strength(known):
            found[result.defense] = result
    return list(found.values())


def _strength(result: MembershipAudit) -> tuple[bool, float]:
    return result.level in ("found", "reversed"), abs(result.auc.value - CHANCE)


def membership_sections(results: Sequence[MembershipAudit]) -> list[Section]:
    """Return a table of all audits, and the ROC curve of each defence against its strongest attack.

    Args:
        results: The audits, at least one.
    """
    undefended = {result.attack: result for result in results if result.undefended == result.auc}
    reasons = dict.fromkeys(result.verdict.reason for result in results if result.verdict.reason)
    note = f"No verdict because {'; or because '.join(reasons)}." if reasons else ""
    sections: list[Section] = [
        Table("Who was a member", COLUMNS, membership_rows(results), note, definitions=list(DEFINITIONS))
    ]
    for result in strongest(results):
        curves = [_series(result, result.defense)]
        control = undefended.get(result.attack)
        if control is not None and control is not result:
            curves.append(_series(control, "without a defence"))
        sections.append(RocPlot(f"Members found behind {result.defense} by {result.attack}", curves))
    return sections


def write_membership_report(path: Path, results: Sequence[MembershipAudit], source: str = "") -> Path:
    """Write membership audits of the same clients as a self-contained HTML file.

    Args:
        path: The file.
        results: The audits, at least one.
        source: Where the images come from, as shown on the page.

    Returns:
        The path.

    Raises:
        DataError: The file can't be written.
    """
    return write_page(path, membership_page(results, source))


def membership_page(results: Sequence[MembershipAudit], source: str = "") -> Page:
    """Return the report of membership audits of the same clients.

    Args:
        results: The audits, at least one.
        source: Where the images come from, as shown on the page.
    """
    first = results[0]
    return Page(
        title="What uploads reveal of membership",
        summary=" ".join(result.sentence for result in strongest(results)),
        facts=[
            ("clients", str(first.clients)),
            ("members of each", str(first.batch)),
            ("rounds", str(first.rounds)),
            ("AUC by chance", f"{CHANCE:g}"),
            *([("images from", source)] if source else []),
        ],
        sections=membership_sections(results),
        made=datetime.now(UTC).replace(microsecond=0),
    )


def _series(result: MembershipAudit, name: str) -> RocSeries:
    return client_roc_series(name, result.members, result.non_members)
