"""The table of an audit report: a row for every defence and attack, and what its columns mean."""

from collections.abc import Mapping, Sequence
from dataclasses import fields

from refiner.audit.display_names import pair_names
from refiner.audit.result import AuditResult, Mean
from refiner.audit.summary import tuning_text
from refiner.metrics.thresholds import PAPER_THRESHOLDS
from refiner.report import Cell

COLUMNS = (
    "defence",
    "attack",
    "PSNR, dB",
    "SSIM",
    "LPIPS",
    "noise",
    "identified",
    "labels inferred",
    "upload bytes",
    "exposed",
    "verdict",
)


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


def table_note(results: Sequence[AuditResult]) -> str:
    """Return the text below the table."""
    text = (
        "Means over all images, with the 95 % interval in brackets (percentile bootstrap over the clients). "
        "The original images are compared with the attack's reconstructions. "
    )
    diverged = sum(sum(result.diverged) for result in results)
    if diverged:
        text += f"{diverged} attacks diverged; their best reconstruction before that is counted. "
    for (defense, _), result in zip(pair_names(results), results, strict=True):
        if result.tuned is not None:
            text += f"{defense}: {result.attack} was tuned to {tuning_text(result)}. "
    return text.strip()


def column_definitions(result: AuditResult) -> list[tuple[str, str]]:
    """Return what each column of the table means, with the thresholds of this audit."""
    metrics = result.settings.get("metrics")
    settings = metrics if isinstance(metrics, Mapping) else {}
    names = [field.name for field in fields(PAPER_THRESHOLDS)]
    limits = {name: settings.get(name, getattr(PAPER_THRESHOLDS, name)) for name in names}
    is_paper = all(
        limits[name] == getattr(PAPER_THRESHOLDS, name) for name in ("psnr", "ssim", "lpips", "noise")
    )
    visible = "visible by the Refiner paper's threshold" if is_paper else "visible by this audit's threshold"
    definitions = [
        ("PSNR", f"Similarity of the pixels; higher is more exposed, {visible} from {limits['psnr']:g} dB."),
        ("SSIM", f"Similarity of the structure; higher is more exposed, {visible} from {limits['ssim']:g}."),
        (
            "LPIPS",
            f"Perceptual distance; lower is more exposed, {visible} up to {limits['lpips']:g}. It does not "
            "count towards the verdict.",
        ),
        (
            "noise",
            f"Share of noise in the reconstruction; lower is more exposed, {visible} up to "
            f"{limits['noise']:g}. It does not count towards the verdict.",
        ),
    ]
    if result.candidates is not None:
        chance = f"{100 / result.candidates:.2g} %"
        definitions.append(
            (
                "identified",
                f"How often the original is the most similar of {result.candidates} images to the "
                f"reconstruction, by correlation of pixels / by LPIPS; chance gives {chance}.",
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
        (
            "verdict",
            f"Exposed if at least {100 * limits['exposed_share']:g} % of the images are exposed; borderline "
            f"if any is, or if at least {100 * limits['borderline_share']:g} % are not protected; otherwise "
            "protected. Identifications that chance explains do not count.",
        ),
    ]
