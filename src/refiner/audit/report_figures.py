"""The figures of an audit report: grid of images, privacy against price, distributions, gallery."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from refiner.audit.display_names import Pair
from refiner.audit.ranking import RankedDefense
from refiner.audit.result import AuditResult
from refiner.audit.result_records import Finding
from refiner.audit.summary import from_robust_text
from refiner.report import (
    Card,
    CardGroup,
    Distribution,
    Dot,
    Gallery,
    Grid,
    GridColumn,
    GridImage,
    ReferenceLine,
    Scatter,
    Strip,
)

_CARDS_PER_GROUP = 12
_GRID_ROWS = 12


def image_grid(ranked: Sequence[RankedDefense]) -> Grid:
    """Return the grid of images: originals, and what the strongest attack on each defence reconstructs.

    Args:
        ranked: The defences, in the order of the columns; a defence that was audited on other images than the
            first is left out.
    """
    first = ranked[0].strongest
    shown = [each for each in ranked if np.array_equal(each.strongest.original, first.original)]
    rows = min(_GRID_ROWS, len(first.findings))
    columns = [
        GridColumn(
            each.name,
            [_grid_image(each.strongest, row) for row in range(rows)],
            f"by {each.strongest.attack}",
            each.verdict,
        )
        for each in shown
    ]
    left_out = [each.name for each in ranked if each not in shown]
    note = f"Audited on other images, and not shown: {', '.join(left_out)}." if left_out else ""
    return Grid(
        "What the strongest attack on each defence reconstructs",
        [finding.name for finding in first.findings[:rows]],
        list(first.original[:rows]),
        columns,
        total=len(first.findings),
        note=note,
    )


def _grid_image(result: AuditResult, row: int) -> GridImage:
    finding = result.findings[row]
    return GridImage(result.reconstruction[row], f"{finding.psnr:.1f} dB", finding.verdict.level)


def privacy_against_price(ranked: Sequence[RankedDefense]) -> Scatter | None:
    """Return the strongest attack's PSNR against the gradient error; None for fewer than two defences."""
    dots = [
        Dot(each.name, each.cost.gradient_error, each.strongest.means["psnr"].value, each.verdict)
        for each in ranked
        if each.cost is not None
        and math.isfinite(each.cost.gradient_error)
        and math.isfinite(each.strongest.means["psnr"].value)
    ]
    if len(dots) < 2:
        return None
    blind = ReferenceLine("blind guess", round(ranked[0].strongest.means["blind_psnr"].value, 1))
    return Scatter(
        "Privacy against price",
        dots,
        "gradient error of the upload, relative to the gradient; lower costs less accuracy",
        "PSNR of the strongest attack in dB, lower reveals less",
        [blind],
        "The best defences are at the bottom left.",
        "dB",
    )


def distribution(
    audits: Sequence[tuple[Pair, AuditResult]], score: str, title: str, axis: str, unit: str
) -> Distribution:
    """Return the distribution of a score over the images, for every defence and attack."""
    first = audits[0][1]
    digits = 1 if score == "psnr" else 2
    references = [ReferenceLine("blind guess, mean", round(first.means[f"blind_{score}"].value, digits))]
    metrics = first.settings.get("metrics")
    threshold = metrics.get(score) if isinstance(metrics, Mapping) else None
    if isinstance(threshold, int | float):
        references.append(ReferenceLine("visible from", float(threshold)))
    strips = [Strip(defense, attack, result.scores(score)) for (defense, attack), result in audits]
    note = "Each dot is one image; the box contains the middle half of them, the line is the median."
    return Distribution(title, axis, strips, references, note, unit)


def gallery(audits: Sequence[tuple[Pair, AuditResult]]) -> Gallery:
    """Return originals and reconstructions of every defence and attack, with all scores."""
    groups = []
    for (defense, attack), result in audits:
        cards = [_card(result, i) for i in range(min(_CARDS_PER_GROUP, len(result.findings)))]
        hidden = len(result.findings) - len(cards)
        note = f"The first {len(cards)} of {len(result.findings)} images. " if hidden else ""
        verdict = result.verdict
        reason = f"No verdict: {verdict.reason}" if verdict.level == "no verdict" else verdict.reason
        reached = "" if result.from_robust is None else f"; {from_robust_text(result.from_robust)}"
        text = f"{note}{reason[0].upper()}{reason[1:]}{reached}."
        levels = [finding.verdict.level for finding in result.findings]
        groups.append(CardGroup(defense, attack, cards, text, levels))
    has_robust = any(result.robust is not None for _, result in audits)
    note = (
        "Robust data: what the client computed the uploaded gradient on, instead of the original. Values "
        "outside 0..1 are clipped for display."
    )
    return Gallery("Originals and reconstructions", groups, note if has_robust else "")


def _card(result: AuditResult, i: int) -> Card:
    finding = result.findings[i]
    return Card(
        name=finding.name,
        original=result.original[i],
        reconstruction=result.reconstruction[i],
        robust=None if result.robust is None else result.robust[i],
        scores=_card_scores(finding, result.candidates),
        verdict=finding.verdict.level,
    )


def _card_scores(finding: Finding, candidates: int | None) -> list[tuple[str, str]]:
    scores = [
        ("PSNR", f"{finding.psnr:.1f} dB (blind guess {finding.blind_psnr:.1f})"),
        ("SSIM", f"{finding.ssim:.2f} (blind guess {finding.blind_ssim:.2f})"),
    ]
    if finding.lpips is not None:
        blind = "" if finding.blind_lpips is None else f" (blind guess {finding.blind_lpips:.3f})"
        scores.append(("LPIPS", f"{finding.lpips:.3f}{blind}"))
    if finding.noise is not None:
        scores.append(("noise", f"{finding.noise:.2f}"))
    if finding.rank_pixels is not None:
        scores.append(("rank by pixels", f"{finding.rank_pixels:g} of {candidates:,}"))
    if finding.rank_lpips is not None:
        scores.append(("rank by LPIPS", f"{finding.rank_lpips:g} of {candidates:,}"))
    return scores
