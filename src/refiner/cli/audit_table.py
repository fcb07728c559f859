"""The table and the sentences that `refiner audit` prints, and the same as a record for JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rich.box import SIMPLE
from rich.markup import escape
from rich.table import Table

from refiner.audit import AuditResult
from refiner.audit.display_names import pair_names
from refiner.audit.ranking import first_choice, rank_defenses
from refiner.audit.report_table import (
    OR_IDENTIFIABLE,
    blind_means,
    identifiable_cell,
    share_cell,
    top1_cell,
    without_noise_ratio,
)
from refiner.audit.result_records import Mean
from refiner.audit.serialization import to_json_value
from refiner.audit.summary import main_sentences, other_sentences, verdict_note
from refiner.cli.common import console
from refiner.metrics import Level

_COLOURS = {"visible": "red", "identifiable": "yellow", "neither": "green", "no verdict": "bright_black"}
# Narrower terminals show only what the verdict depends on, with several attacks less than that; the report
# has all columns.
_WIDE, _WIDE_WITH_ATTACKS = 110, 100
_MAX_TABLE_WIDTH = 120
_HEADS = {"psnr": "PSNR, dB", "ssim": "SSIM", "lpips": "LPIPS"}
_DIGITS = {"psnr": 1, "ssim": 2, "lpips": 3}


def print_results(results: Sequence[AuditResult]) -> None:
    """Print a row for every defence and attack, and what they mean in sentences."""
    count = results[0].victims * results[0].batch
    title = f"{count} image{'' if count == 1 else 's'} in batches of {results[0].batch}"
    pairs = pair_names(results)
    single = len({attack for _, attack in pairs}) == 1
    if single:
        title += f", attacked by {escape(pairs[0][1])}"
    wide = single and console.width >= _WIDE
    table = Table(
        caption=_caption(results, wide),
        caption_justify="left",
        box=SIMPLE,
        # Without padding the table fits into 80 columns.
        padding=(0, 1 if console.width >= 90 else 0, 0, 0),
        show_edge=False,
    )
    names = ("defence",) if single else ("defence", "attack")
    more = ("noise", "top-1", "labels") if wide else ()
    scores = ("psnr", "ssim", "lpips") if single or console.width >= _WIDE_WITH_ATTACKS else ("psnr",)
    heads = (*names, *(_HEADS[score] for score in scores), *more, "visible", OR_IDENTIFIABLE, "verdict")
    for name in heads:
        left = name in ("defence", "attack", "verdict")
        narrow = name not in ("defence", "attack")
        table.add_column(name, justify="left" if left else "right", no_wrap=narrow, overflow="fold")
    for pair, result in zip(pairs, results, strict=True):
        verdict, labels = result.verdict, result.label_recovery
        inferred = "granted" if labels is None else f"{100 * labels:.0f} %"
        table.add_row(
            *map(escape, pair[: len(names)]),
            *_scores(result.means, scores, wide),
            *([inferred] if wide else []),
            *(escape(cell.text) for cell in (share_cell(verdict.visible), identifiable_cell(result))),
            verdict_markup(verdict.level),
        )
    # All audits have the same victims, and so the same blind guess.
    table.add_row("blind guess", *[""] * (len(names) - 1), *_scores(blind_means(results) or {}, scores, wide))
    console.print(title, highlight=False)
    console.print(table, width=min(console.width, _MAX_TABLE_WIDTH))
    # What a reader must know to judge them; then the answers, one line for each defence.
    answers = (*main_sentences(results), first_choice(rank_defenses(results)))
    for text in (verdict_note(results), " ".join(other_sentences(results)), *filter(None, answers)):
        console.print(text, highlight=False, markup=False)


def verdict_markup(level: Level) -> str:
    """Return a verdict in its colour, as markup for the terminal.

    >>> verdict_markup("visible")
    '[red]visible[/]'
    """
    return f"[{_COLOURS[level]}]{level}[/]"


def results_record(results: Sequence[AuditResult]) -> dict[str, object]:
    """Return everything that the table and the sentences say, without rounding, and all settings."""
    blind = blind_means(results)
    return {
        "victims": results[0].victims,
        "batch": results[0].batch,
        "audits": [
            {
                "defense": result.defense,
                "attack": result.attack,
                "verdict": asdict(result.verdict),
                "means": {name: asdict(mean) for name, mean in result.means.items()},
                "candidates": result.candidates,
                "label_recovery": result.label_recovery,
                "upload_bytes": result.upload_bytes,
                "control": None if result.control is None else asdict(result.control),
                "tuned": None if result.tuned is None else dict(result.tuned.chosen),
                "from_robust": None if result.from_robust is None else asdict(result.from_robust),
                "cost": None if result.cost is None else asdict(result.cost),
                "seconds": asdict(result.seconds),
                "settings": to_json_value(result.settings),
            }
            for result in results
        ],
        "blind_guess": None if blind is None else {name: asdict(mean) for name, mean in blind.items()},
        "notes": [*main_sentences(results), *other_sentences(results), verdict_note(results)],
        "first_choice": first_choice(rank_defenses(results)) or None,
    }


def _caption(results: Sequence[AuditResult], wide: bool) -> str:
    """Return the text below the table."""
    sentences = ["Shares of images that are visible, and visible or identifiable, with 95 % intervals."]
    candidates = results[0].candidates
    if wide and candidates is not None:
        sentences.append(
            f"Top-1: how often, of {candidates:,} candidates, the original is the most similar, by pixels / "
            "by LPIPS."
        )
    shaped = without_noise_ratio(results)
    if wide and shaped:
        sentences.append(f"Noise of {', '.join(shaped)}: not valid for shaped noise.")
    return escape(" ".join(sentences))


def _scores(means: Mapping[str, Mean], scores: Sequence[str], wide: bool) -> list[str]:
    """Return the cells of some scores, in a wide table those up to top-1."""
    cells = [_score(means, name, _DIGITS[name]) for name in scores]
    return [*cells, _score(means, "noise", 2), top1_cell(means).text] if wide else cells


def _score(means: Mapping[str, Mean], score: str, digits: int) -> str:
    """Return a mean as text; PSNR with half the width of its interval."""
    mean = means.get(score)
    if mean is None:
        return "–"
    if score != "psnr" or mean.low is None or mean.high is None:
        return f"{mean.value:.{digits}f}"
    return f"{mean.value:.{digits}f} ± {(mean.high - mean.low) / 2:.{digits}f}"
