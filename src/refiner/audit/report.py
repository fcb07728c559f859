"""The HTML report of audits: summary, table, distributions, images and settings."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from refiner.audit.display_names import pair_names, shared_settings
from refiner.audit.report_table import column_definitions, columns, table_note, table_rows
from refiner.audit.result import AuditResult
from refiner.audit.result_records import Finding
from refiner.audit.summary import from_robust_text, main_sentences, other_sentences, verdict_note
from refiner.errors import DataError
from refiner.report import (
    VERDICTS,
    Card,
    CardGroup,
    Distribution,
    Gallery,
    Page,
    ReferenceLine,
    Section,
    SettingsTable,
    Strip,
    Table,
    Verdict,
    write_page,
)

_CARDS_PER_GROUP = 12


def write_report(path: str | os.PathLike[str], results: Sequence[AuditResult], source: str = "") -> Path:
    """Write the report of audits as one self-contained HTML file.

    Args:
        path: Where to write it; missing folders are created.
        results: The audits to compare, all of the same victims.
        source: Where the victims' images come from, as shown in the report.

    Returns:
        The path.

    Raises:
        DataError: if there are no results, or the file can't be written.

    >>> import tempfile
    >>> import torch
    >>> from refiner.audit import audit
    >>> from refiner.core import Task
    >>> x, y = torch.rand(1, 3, 16, 16), torch.tensor([3])
    >>> task = Task(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 10)), example=x)
    >>> result = audit(task, x, y, defense="none", attack="inverting:iterations=1")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_report(Path(folder) / "report.html", [result], source="random pixels")
    ...     "random pixels" in page.read_text(encoding="utf-8")
    True
    """
    return write_page(path, report_page(results, source))


def report_page(results: Sequence[AuditResult], source: str = "") -> Page:
    """Return the contents of the report: summary, table, distributions, images and settings.

    Args:
        results: The audits to compare, all of the same victims.
        source: Where the victims' images come from, as shown in the report.

    Returns:
        A page for `refiner.report.write_page` or `refiner.report.render_page`.

    Raises:
        DataError: if there are no results.

    >>> report_page([])
    Traceback (most recent call last):
    refiner.errors.DataError: results = []: expected at least one audit
    """
    if not results:
        raise DataError(field="results", value=results, expected="at least one audit")
    names = pair_names(results)
    audits = list(zip(names, results, strict=True))
    sections: list[Section] = [
        Table(
            "Scores of every defence and attack",
            columns(results),
            table_rows(results),
            table_note(results),
            column_definitions(results),
        ),
        _distribution(audits, "psnr", "PSNR of every image", "PSNR in dB, higher reveals more", "dB"),
        _distribution(audits, "ssim", "SSIM of every image", "SSIM, higher reveals more", ""),
        _gallery(audits),
        SettingsTable(
            shared_settings(names, results),
            note="Everything that the results depend on. The same settings and device give the same results.",
        ),
    ]
    other = other_sentences(results)
    return Page(
        title="How much of your data can be reconstructed",
        summary=" ".join([*main_sentences(results), *other[:1]]),
        facts=_facts(results[0], source),
        sections=sections,
        note=(" ".join(other[1:]), verdict_note(results)),
        verdict=page_verdict(results),
        made=max(result.made for result in results),
    )


def page_verdict(results: Sequence[AuditResult]) -> Verdict | None:
    """Return the verdict by the strongest attack on the defence, or None if several defences are compared."""
    audits = list(zip(pair_names(results), results, strict=True))
    defended = [(name, result) for (name, _), result in audits if result.defense != "none"]
    defended = defended or [(name, result) for (name, _), result in audits]
    if len({name for name, _ in defended}) > 1:
        return None
    return min((result.verdict.level for _, result in defended), key=VERDICTS.index)


def _facts(first: AuditResult, source: str) -> list[tuple[str, str]]:
    model = first.settings.get("model")
    settings = model if isinstance(model, Mapping) else {}
    return [
        ("clients", str(first.victims)),
        ("images per client", str(first.batch)),
        ("PSNR of a blind guess", f"{first.means['blind_psnr'].value:.1f} dB"),
        ("model", f"{settings.get('name', '?')}, {settings.get('parameters', 0):,} parameters"),
        *([("images from", source)] if source else []),
    ]


def _distribution(
    audits: Sequence[tuple[tuple[str, str], AuditResult]], score: str, title: str, axis: str, unit: str
) -> Distribution:
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


def _gallery(audits: Sequence[tuple[tuple[str, str], AuditResult]]) -> Gallery:
    groups = []
    for (defense, attack), result in audits:
        cards = [_card(result, i) for i in range(min(_CARDS_PER_GROUP, len(result.findings)))]
        hidden = len(result.findings) - len(cards)
        note = f"The first {len(cards)} of {len(result.findings)} images. " if hidden else ""
        verdict = result.verdict
        reason = f"No verdict: {verdict.reason}" if verdict.level == "no verdict" else verdict.reason
        reached = "" if result.from_robust is None else f"; {from_robust_text(result.from_robust)}"
        groups.append(CardGroup(defense, attack, cards, f"{note}{reason[0].upper()}{reason[1:]}{reached}."))
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
