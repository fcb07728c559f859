"""The HTML report of audits: summary, table, distributions, images and settings."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from refiner.audit.display_names import pair_names, shared_settings
from refiner.audit.result import AuditResult, Finding, Mean
from refiner.audit.summary import attack_works, exposed_by, summary, tuning_text, verdict_note
from refiner.errors import DataError
from refiner.metrics.thresholds import PAPER_THRESHOLDS
from refiner.report import (
    VERDICTS,
    Card,
    CardGroup,
    Cell,
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

COLUMNS = (
    "defence",
    "attack",
    "PSNR, dB",
    "SSIM",
    "LPIPS",
    "noise",
    "identified",
    "labels inferred",
    "upload, bytes",
    "exposed",
    "verdict",
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
        Table("Scores of every defence and attack", list(COLUMNS), table_rows(results), _table_note(results)),
        _distribution(
            audits, "psnr", "PSNR of every image", "PSNR in dB; higher is a better reconstruction", "dB"
        ),
        _distribution(audits, "ssim", "SSIM of every image", "SSIM; higher is a better reconstruction", ""),
        _gallery(audits),
        SettingsTable(
            shared_settings(names, results),
            note="Everything that the results depend on. The same settings and device give the same results.",
        ),
    ]
    return Page(
        title="How much of your data can be reconstructed",
        summary=summary(results),
        facts=_facts(results[0], source),
        sections=sections,
        note=verdict_note(results[0]),
        verdict=page_verdict(results),
        made=max(result.made for result in results),
    )


def page_verdict(results: Sequence[AuditResult]) -> Verdict | None:
    """Return the worst verdict on the defence, or None if several defences are compared.

    It is also None if the attack fails even without a defence, since that is no merit of the defence.
    """
    audits = list(zip(pair_names(results), results, strict=True))
    defended = [(name, result) for (name, _), result in audits if result.defense != "none"]
    defended = defended or [(name, result) for (name, _), result in audits]
    if len({name for name, _ in defended}) > 1 or attack_works(results) is False:
        return None
    return min((result.verdict.level for _, result in defended), key=VERDICTS.index)


def table_rows(results: Sequence[AuditResult]) -> list[list[str | Cell]]:
    """Return a row for every audit in the order of `COLUMNS`, and one for the blind guess they share."""
    rows: list[list[str | Cell]] = []
    for (defense, attack), result in zip(pair_names(results), results, strict=True):
        labels, verdict = result.label_recovery, result.verdict
        count = len(result.findings)
        rows.append(
            [
                defense,
                attack,
                format_interval(result.means.get("psnr"), 1),
                format_interval(result.means.get("ssim"), 3),
                _format_mean(result.means.get("lpips"), 3),
                _format_mean(result.means.get("noise"), 2),
                top1_cell(result.means),
                "granted" if labels is None else f"{100 * labels:.0f} %",
                "–" if result.upload_bytes is None else f"{result.upload_bytes:,}",
                Cell(f"{verdict.exposed} of {count}", value=verdict.exposed / count),
                Cell(verdict=verdict.level),
            ]
        )
    blind = blind_means(results)
    if blind is not None:
        scores: list[str | Cell] = [
            format_interval(blind.get("psnr"), 1),
            format_interval(blind.get("ssim"), 3),
            _format_mean(blind.get("lpips"), 3),
            _format_mean(blind.get("noise"), 2),
            top1_cell(blind),
        ]
        rows.append(["blind guess", "–", *scores, *["–"] * (len(COLUMNS) - 7)])
    return rows


def blind_means(results: Sequence[AuditResult]) -> dict[str, Mean] | None:
    """Return the mean scores of the blind guess; None if they are not the same for all audits.

    A result of an older version may lack some of them; they are then taken from the other results.
    """
    if len({(result.means["blind_psnr"], result.means["blind_ssim"]) for result in results}) > 1:
        return None
    means = [(name, mean) for result in reversed(results) for name, mean in result.means.items()]
    return {name.removeprefix("blind_"): mean for name, mean in means if name.startswith("blind_")}


def top1_cell(means: Mapping[str, Mean]) -> Cell:
    """Return how often the original is the nearest candidate, by pixels and, if known, by LPIPS.

    >>> top1_cell({"top1_pixels": Mean(0.21, None, None), "top1_lpips": Mean(0.01, None, None)}).text
    '21 / 1 %'
    """
    pixels, lpips = means.get("top1_pixels"), means.get("top1_lpips")
    if pixels is None:
        return Cell("–")
    rates = f"{100 * pixels.value:.0f}" + ("" if lpips is None else f" / {100 * lpips.value:.0f}")
    return Cell(f"{rates} %", value=pixels.value)


def format_interval(mean: Mean | None, digits: int) -> str:
    """Return a mean with its interval as text.

    >>> format_interval(Mean(12.34, 11.5, 13.0), 1), format_interval(Mean(0.5, None, None), 2)
    ('12.3 [11.5, 13.0]', '0.50')
    """
    if mean is None:
        return "–"
    text = f"{mean.value:.{digits}f}"
    if mean.low is None or mean.high is None:
        return text
    return f"{text} [{mean.low:.{digits}f}, {mean.high:.{digits}f}]"


def _format_mean(mean: Mean | None, digits: int) -> str:
    return "–" if mean is None else f"{mean.value:.{digits}f}"


def _table_note(results: Sequence[AuditResult]) -> str:
    text = (
        "Means over all images, with the 95 % interval in brackets (percentile bootstrap over the victims). "
        "PSNR and SSIM measure the similarity of reconstruction and original (higher: more exposed), LPIPS "
        "their perceptual distance (lower: more exposed). Noise: share of noise in the reconstruction. "
    )
    candidates = results[0].candidates
    if candidates is not None:
        text += (
            f"Identified: how often the original is the most similar of {candidates} images to the "
            f"reconstruction, by correlation of pixels / by LPIPS; chance gives {100 / candidates:.2g} %. "
        )
    text += (
        "Labels inferred: share of the labels that the attack inferred from the upload. Upload: size of one "
        "client's upload when packed; 4 bytes per parameter without compression. Blind guess: the best of "
        "three guesses that use no gradient (grey, the mean of public images, the image's own mean colour), "
        "chosen separately for PSNR, SSIM and LPIPS; noise and identification are those of the guess with "
        f"the best PSNR. {_thresholds_text(results[0])} "
    )
    diverged = sum(sum(result.diverged) for result in results)
    if diverged:
        text += f"{diverged} attacks diverged; the best reconstruction before that is counted. "
    for (defense, _), result in zip(pair_names(results), results, strict=True):
        if result.tuned is not None:
            text += f"{defense}: {result.attack} was tuned to {tuning_text(result)}. "
    return text.strip()


def _thresholds_text(result: AuditResult) -> str:
    """Return the four thresholds of this audit in a sentence."""
    metrics = result.settings.get("metrics")
    settings = metrics if isinstance(metrics, Mapping) else {}
    names = ("psnr", "ssim", "lpips", "noise")
    psnr, ssim, lpips, noise = (settings.get(name, getattr(PAPER_THRESHOLDS, name)) for name in names)
    is_paper = (psnr, ssim, lpips, noise) == tuple(getattr(PAPER_THRESHOLDS, name) for name in names)
    whose = "By the paper's thresholds" if is_paper else "By the thresholds of this audit"
    return (
        f"{whose}, private content is visible from a PSNR of {psnr:g} dB or an SSIM of {ssim:g} upwards, and "
        f"from an LPIPS of {lpips:g} or a noise of {noise:g} downwards; LPIPS and noise do not count towards "
        "the verdict."
    )


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
        references.append(ReferenceLine("exposed from", float(threshold)))
    strips = [Strip(defense, attack, result.scores(score)) for (defense, attack), result in audits]
    note = "Each dot is one image; the box contains the middle half of them, the line is the median."
    return Distribution(title, axis, strips, references, note, unit)


def _gallery(audits: Sequence[tuple[tuple[str, str], AuditResult]]) -> Gallery:
    groups = []
    for (defense, attack), result in audits:
        cards = [_card(result, i) for i in range(min(_CARDS_PER_GROUP, len(result.findings)))]
        hidden = len(result.findings) - len(cards)
        note = f"The first {len(cards)} of {len(result.findings)} images. " if hidden else ""
        criteria = exposed_by(result)
        if criteria:
            criteria = f"{'; the others' if result.verdict.by_chance else ','} {criteria}"
        groups.append(CardGroup(defense, attack, cards, f"{note}{result.verdict.reason}{criteria}."))
    has_robust = any(result.robust is not None for _, result in audits)
    note = (
        "Robust data: what the client computed the uploaded gradient on, instead of the original. Values "
        "outside 0..1 are clipped for display."
    )
    return Gallery("Original and reconstruction of every image", groups, note if has_robust else "")


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
    scores = [("PSNR", f"{finding.psnr:.1f} dB"), ("blind guess", f"{finding.blind_psnr:.1f} dB")]
    scores += [("SSIM", f"{finding.ssim:.2f}"), ("blind guess", f"{finding.blind_ssim:.2f}")]
    if finding.lpips is not None:
        scores.append(("LPIPS", f"{finding.lpips:.3f}"))
    if finding.noise is not None:
        scores.append(("noise", f"{finding.noise:.2f}"))
    if finding.rank_pixels is not None:
        scores.append(("similarity rank", f"{finding.rank_pixels:g} of {candidates}"))
    if finding.rank_lpips is not None:
        scores.append(("LPIPS rank", f"{finding.rank_lpips:g} of {candidates}"))
    return scores
