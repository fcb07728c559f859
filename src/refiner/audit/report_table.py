"""The table of an audit report: a row for every defence and attack, and what its columns mean."""

from collections.abc import Mapping, Sequence
from dataclasses import fields

from refiner.audit.display_names import pair_names
from refiner.audit.result import AuditResult
from refiner.audit.result_records import FromRobust, Mean
from refiner.audit.summary import identification_counts, tuning_text
from refiner.metrics import Share
from refiner.metrics.thresholds import PAPER_THRESHOLDS
from refiner.report import Cell

FROM_ROBUST = "from x*"
OR_IDENTIFIABLE = "or identifiable"
"""Heads the share of images that are visible or identifiable, beside the share of those that are visible."""
COLUMNS = (
    "defence",
    "verdict",
    "attack",
    "visible",
    OR_IDENTIFIABLE,
    "PSNR, dB",
    "SSIM",
    "LPIPS",
    "noise",
    "top-1",
    "labels inferred",
    "upload bytes",
)
_SCORES = ("PSNR, dB", "SSIM", "LPIPS", "noise", "top-1")


def columns(results: Sequence[AuditResult]) -> list[str]:
    """Return the headings; "from x*" is among them if it was measured for one of the audits."""
    names = list(COLUMNS)
    if any(result.from_robust is not None for result in results):
        names.insert(names.index("labels inferred"), FROM_ROBUST)
    return names


def table_rows(results: Sequence[AuditResult]) -> list[list[str | Cell]]:
    """Return a row for every audit in the order of `columns`, and one for the blind guess they share."""
    names = columns(results)
    rows: list[list[str | Cell]] = []
    for (defense, attack), result in zip(pair_names(results), results, strict=True):
        labels, verdict = result.label_recovery, result.verdict
        cells: dict[str, str | Cell] = {
            "defence": defense,
            "attack": attack,
            **_scores(result.means),
            FROM_ROBUST: _from_robust_cell(result.from_robust),
            "labels inferred": "granted" if labels is None else f"{100 * labels:.0f} %",
            "upload bytes": "–" if result.upload_bytes is None else f"{result.upload_bytes:,}",
            "visible": share_cell(verdict.visible),
            OR_IDENTIFIABLE: identifiable_cell(result),
            "verdict": Cell(verdict=verdict.level),
        }
        rows.append([cells[name] for name in names])
    blind = blind_means(results)
    if blind is not None:
        guess: dict[str, str | Cell] = {"defence": "blind guess", **_scores(blind)}
        rows.append([guess.get(name, "–") for name in names])
    return rows


def _scores(means: Mapping[str, Mean]) -> dict[str, str | Cell]:
    cells: tuple[str | Cell, ...] = (
        format_interval(means.get("psnr"), 1),
        format_interval(means.get("ssim"), 3),
        _format_mean(means.get("lpips"), 3),
        _format_mean(means.get("noise"), 2),
        top1_cell(means),
    )
    return dict(zip(_SCORES, cells, strict=True))


def blind_means(results: Sequence[AuditResult]) -> dict[str, Mean] | None:
    """Return the mean scores of the blind guess; None if they are not the same for all audits.

    Audits may have computed different metrics; each is taken from one that has it.
    """
    if len({(result.means["blind_psnr"], result.means["blind_ssim"]) for result in results}) > 1:
        return None
    means = [(name, mean) for result in reversed(results) for name, mean in result.means.items()]
    return {name.removeprefix("blind_"): mean for name, mean in means if name.startswith("blind_")}


def top1_cell(means: Mapping[str, Mean]) -> Cell:
    """Return how often the original is the most similar candidate, by pixels and, if known, by LPIPS.

    >>> top1_cell({"top1_pixels": Mean(0.21, None, None), "top1_lpips": Mean(0.01, None, None)}).text
    '21 / 1 %'
    """
    pixels, lpips = means.get("top1_pixels"), means.get("top1_lpips")
    if pixels is None:
        return Cell("–")
    rates = f"{100 * pixels.value:.0f}" + ("" if lpips is None else f" / {100 * lpips.value:.0f}")
    return Cell(f"{rates} %", value=pixels.value)


def share_cell(share: Share) -> Cell:
    """Return a share with its interval, in per cent.

    >>> share_cell(Share.of(3, 20)).text
    '15 % [5, 36]'
    """
    ends = ", ".join(f"{100 * end:.0f}" for end in (share.low, share.high))
    return Cell(f"{100 * share.value:.3g} % [{ends}]", value=share.value)


def identifiable_cell(result: AuditResult) -> Cell:
    """Return the share of images that are visible or identifiable, or that identification was not tested."""
    return share_cell(result.verdict.identifiable) if identification_counts(result) else Cell("not tested")


def _from_robust_cell(reached: FromRobust | None) -> Cell:
    if reached is None:
        return Cell("–")
    if reached.psnr is None:
        return Cell("diverged")
    top1 = "" if reached.top1 is None else f", {100 * reached.top1:.0f} %"
    return Cell(f"{reached.psnr:.1f}{top1}", value=reached.psnr)


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


def without_noise_ratio(results: Sequence[AuditResult]) -> list[str]:
    """Return the names of the defences to whose noise the noise ratio does not apply."""
    pairs = zip(pair_names(results), results, strict=True)
    names = [name for (name, _), result in pairs if not _noise_ratio_applies(result)]
    return list(dict.fromkeys(names))


def _noise_ratio_applies(result: AuditResult) -> bool:
    settings = result.settings.get("defense")
    return not isinstance(settings, Mapping) or settings.get("noise ratio applies") is not False


def table_note(results: Sequence[AuditResult]) -> str:
    """Return the text below the table."""
    text = (
        "Means over all images with 95 % intervals in brackets (percentile bootstrap over the clients); "
        "shares of images with 95 % intervals (Wilson). The original images are "
        "compared with the attack's reconstructions. "
    )
    diverged = sum(sum(result.diverged) for result in results)
    if diverged:
        text += (
            f"Attacks on {diverged} upload{'' if diverged == 1 else 's'} diverged; their best reconstruction "
            "before that is counted, or grey if there is none. "
        )
    shaped = without_noise_ratio(results)
    if shaped:
        text += f"Noise of {', '.join(shaped)}: not valid for shaped noise. "
    for (defense, _), result in zip(pair_names(results), results, strict=True):
        if result.tuned is not None:
            text += f"{defense}: {result.attack} was tuned to {tuning_text(result)}. "
        if result.verdict.level == "no verdict":
            text += f"No verdict on {defense} by {result.attack}: {result.verdict.reason}. "
    return text.strip()


def column_definitions(results: Sequence[AuditResult]) -> list[tuple[str, str]]:
    """Return what each column of the table means, with the thresholds of these audits."""
    result = results[0]
    metrics = result.settings.get("metrics")
    settings = metrics if isinstance(metrics, Mapping) else {}
    names = [field.name for field in fields(PAPER_THRESHOLDS)]
    limits = {name: settings.get(name, getattr(PAPER_THRESHOLDS, name)) for name in names}
    is_paper = all(
        limits[name] == getattr(PAPER_THRESHOLDS, name) for name in ("psnr", "ssim", "lpips", "noise")
    )
    visible = "visible by the Refiner paper's threshold" if is_paper else "visible by this audit's threshold"
    definitions = [
        (
            "verdict",
            f"Visible if at least {100 * limits['visible_share']:g} % of the images are; identifiable if "
            "images are identifiable beyond chance; otherwise neither. No verdict if the attack fails "
            "without a defence, diverged, or was not tried without one.",
        ),
        (
            "visible",
            "Share of images that one can see: PSNR, SSIM or LPIPS is beyond its threshold, and better than "
            f"the blind guess by {limits['psnr_margin']:g} dB, {limits['ssim_margin']:g} or "
            f"{limits['lpips_margin']:g}. PSNR counts only from an SSIM of {limits['structure']:g} on.",
        ),
        (
            OR_IDENTIFIABLE,
            "Share of images that are visible, or whose reconstruction singles them out among all "
            "candidates; not tested where there are too few candidates.",
        ),
        ("PSNR", f"Similarity of the pixels; higher reveals more, {visible} from {limits['psnr']:g} dB."),
        ("SSIM", f"Similarity of the structure; higher reveals more, {visible} from {limits['ssim']:g}."),
        ("LPIPS", f"Perceptual distance; lower reveals more, {visible} up to {limits['lpips']:g}."),
        (
            "noise",
            f"Share of noise in the reconstruction; lower reveals more, {visible} up to "
            f"{limits['noise']:g}. It does not count towards the verdict.",
        ),
    ]
    if result.candidates is not None:
        chance = f"{100 / result.candidates:.2g} %"
        definitions.append(
            (
                "top-1",
                f"How often, of {result.candidates:,} candidates, the original is the most similar to the "
                f"reconstruction, by correlation of pixels / by LPIPS; chance gives {chance}.",
            )
        )
    if FROM_ROBUST in columns(results):
        definitions.append(
            (
                FROM_ROBUST,
                "PSNR in dB and top-1 of an estimate from the robust data themselves, which reveal more than "
                "an upload of their gradient.",
            )
        )
    return [
        *definitions,
        ("labels inferred", "Share of the labels that the attack inferred from the upload."),
        (
            "upload bytes",
            "Size of one client's compressed upload; without compression 4 bytes per parameter.",
        ),
        (
            "blind guess",
            "The best of three guesses that use no gradient: grey, the mean of public images, and the "
            "image's own mean colour; chosen for PSNR, SSIM and LPIPS separately, otherwise by PSNR.",
        ),
    ]
