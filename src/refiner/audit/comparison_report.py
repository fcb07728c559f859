"""The page and the sentences of a comparison of two folders of audit results."""

from collections.abc import Sequence

from refiner.audit.comparison import AuditComparison, ResultPair
from refiner.audit.display_names import Pair
from refiner.audit.report_table import format_interval, identifiable_cell, share_cell
from refiner.audit.result import AuditResult
from refiner.report import Cell, Page, Section, Table

_COLUMNS = (
    "defence",
    "verdict, old",
    "verdict, new",
    "attack",
    "PSNR, old",
    "PSNR, new",
    "change, dB",
    "visible, old",
    "visible, new",
    "or identifiable, old",
    "or identifiable, new",
    "gradient error, old",
    "gradient error, new",
    "bytes, old",
    "bytes, new",
)


def comparison_page(comparison: AuditComparison, old_name: str, new_name: str) -> Page:
    """Return the page of a comparison.

    Args:
        comparison: Old and new results.
        old_name: Name of the old results, as their folder.
        new_name: Name of the new results.

    Returns:
        A page for `refiner.report.write_page`.
    """
    sections: list[Section] = [
        Table(
            "Old and new scores",
            _COLUMNS,
            [_row(pair) for pair in comparison.pairs],
            "Means over all images, and shares of images, with 95 % intervals in brackets. A positive change "
            "of PSNR means that the attack reveals more than before.",
        ),
        Table(
            "Settings that differ",
            ("setting", "old", "new", "where"),
            [
                [each.name, each.old, each.new, "; ".join(each.pairs) or "everywhere"]
                for each in comparison.differences
            ],
            "" if comparison.differences else "None: the same settings and images.",
        ),
    ]
    answer, *others = comparison_sentences(comparison)
    return Page(
        title="What changed between two audits",
        answer=answer,
        summary=" ".join(others),
        facts=[("old", old_name), ("new", new_name)],
        sections=sections,
        made=max(pair.new.made for pair in comparison.pairs),
    )


def comparison_sentences(comparison: AuditComparison) -> list[str]:
    """Return what changed: verdicts first, then the largest change of PSNR, and what can't be compared."""
    pairs = comparison.pairs
    changed = [pair for pair in pairs if pair.old.verdict.level != pair.new.verdict.level]
    total = f"{len(pairs)} pair{'' if len(pairs) == 1 else 's'} of defence and attack"
    sentences = [
        f"{len(changed) or 'None'} of {total} {'has' if len(changed) < 2 else 'have'} another verdict."
    ]
    for pair in changed:
        sentences.append(f"{pair.name}: {pair.new.verdict.level}, was {pair.old.verdict.level}.")
    largest = max(pairs, key=lambda pair: abs(pair.psnr_change))
    change = f"{largest.psnr_change:+.1f}"
    if change.strip("+-") == "0.0":
        sentences.append("No PSNR has changed.")
    else:
        sentences.append(f"The largest change of PSNR is {change} dB ({largest.name}).")
    for word, names in (("old", comparison.only_old), ("new", comparison.only_new)):
        if names:
            sentences.append(f"Only in the {word} results: {_names(names)}.")
    if any(each.name.startswith("data.") for each in comparison.differences):
        sentences.append("The images differ, so that a change need not come from the defence.")
    return sentences


def _names(pairs: Sequence[Pair]) -> str:
    return ", ".join(" against ".join(pair) for pair in pairs)


def _row(pair: ResultPair) -> list[str | Cell]:
    old, new = pair.old, pair.new
    return [
        pair.defense,
        Cell(verdict=old.verdict.level),
        Cell(verdict=new.verdict.level),
        pair.attack,
        *(format_interval(result.means.get("psnr"), 1) for result in (old, new)),
        Cell(f"{pair.psnr_change:+.1f}", value=pair.psnr_change),
        *(share_cell(result.verdict.visible) for result in (old, new)),
        *(identifiable_cell(result) for result in (old, new)),
        *map(_error, (old, new)),
        *("–" if result.upload_bytes is None else f"{result.upload_bytes:,}" for result in (old, new)),
    ]


def _error(result: AuditResult) -> str:
    return "–" if result.cost is None else f"{result.cost.gradient_error:.3g}"
