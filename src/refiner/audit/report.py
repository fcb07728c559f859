"""The report of audits: what came back, in one sentence, in numbers, in images, and how to repeat it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from refiner.audit.display_names import pair_names, shared_settings
from refiner.audit.result import AuditResult, Finding, Mean
from refiner.audit.summary import attack_works, note, summary, tuned, why
from refiner.errors import DataError
from refiner.metrics.thresholds import PAPER
from refiner.report import (
    VERDICTS,
    Card,
    Cell,
    Distribution,
    Gallery,
    Group,
    Page,
    Part,
    Reference,
    Settings,
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
    "labels read",
    "bytes",
    "exposed",
    "verdict",
)
_SHOWN = 12


def write_report(path: str | os.PathLike[str], results: Sequence[AuditResult], source: str = "") -> Path:
    """Write the audits' page as one HTML file; `source` says where the victims come from.

    >>> import tempfile
    >>> import torch
    >>> from refiner.audit import audit
    >>> from refiner.core import Task
    >>> x, y = torch.rand(1, 3, 16, 16), torch.tensor([3])
    >>> task = Task(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(768, 10)), example=x)
    >>> found = audit(task, x, y, defense="none", attack="inverting:iterations=1")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = write_report(Path(folder) / "report.html", [found], source="random pixels")
    ...     "random pixels" in page.read_text(encoding="utf-8")
    True
    """
    return write_page(path, report_page(results, source))


def report_page(results: Sequence[AuditResult], source: str = "") -> Page:
    """Audits as a page: summary, numbers, distributions, images, settings.

    >>> report_page([])
    Traceback (most recent call last):
    refiner.errors.DataError: results: none, expected one audit or more
    """
    if not results:
        raise DataError("results: none, expected one audit or more")
    names = pair_names(results)
    pairs = list(zip(names, results, strict=True))
    parts: list[Part] = [
        Table("In numbers", list(COLUMNS), table_rows(results), _table_note(results)),
        _distribution(pairs, "psnr", "PSNR of every image", "PSNR in dB, higher shows more", "dB"),
        _distribution(pairs, "ssim", "SSIM of every image", "SSIM, higher shows more", ""),
        _gallery(pairs),
        Settings(
            shared_settings(names, results), note="All that the numbers depend on; the same give the same."
        ),
    ]
    return Page(
        title="What comes back from what leaves",
        summary=summary(results),
        facts=_facts(results[0], source),
        parts=parts,
        note=note(results[0]),
        verdict=page_verdict(results),
        made=max(result.made for result in results),
    )


def page_verdict(results: Sequence[AuditResult]) -> Verdict | None:
    """The worst verdict on the one defence in question; None if there are several to tell apart.

    Nor is there one where the attack fails without any defence: it would praise the defence for that.
    """
    pairs = list(zip(pair_names(results), results, strict=True))
    defended = [(name, result) for (name, _), result in pairs if result.defense != "none"]
    defended = defended or [(name, result) for (name, _), result in pairs]
    if len({name for name, _ in defended}) > 1 or attack_works(results) is False:
        return None
    return min((result.verdict.level for _, result in defended), key=VERDICTS.index)


def table_rows(results: Sequence[AuditResult]) -> list[list[str | Cell]]:
    """A row for every audit in the order of `COLUMNS`, last the blind guess, if it is the same for all."""
    rows: list[list[str | Cell]] = []
    for (defense, attack), result in zip(pair_names(results), results, strict=True):
        labels, verdict = result.label_recovery, result.verdict
        count = len(result.findings)
        rows.append(
            [
                defense,
                attack,
                interval(result.means.get("psnr"), 1),
                interval(result.means.get("ssim"), 3),
                _mean(result.means.get("lpips"), 3),
                _mean(result.means.get("noise"), 2),
                top1(result.means),
                "granted" if labels is None else f"{100 * labels:.0f} %",
                "–" if result.upload_bytes is None else f"{result.upload_bytes:,}",
                Cell(f"{verdict.exposed} of {count}", value=verdict.exposed / count),
                Cell(verdict=verdict.level),
            ]
        )
    blind = blind_means(results)
    if blind is not None:
        shown: list[str | Cell] = [interval(blind.get("psnr"), 1), interval(blind.get("ssim"), 3)]
        shown += [_mean(blind.get("lpips"), 3), _mean(blind.get("noise"), 2), top1(blind)]
        rows.append(["blind guess", "–", *shown, *["–"] * (len(COLUMNS) - 7)])
    return rows


def blind_means(results: Sequence[AuditResult]) -> dict[str, Mean] | None:
    """What the blind guess has by each score; None if it is not the same for all audits.

    An audit that was kept from before may lack some scores of the guess: another one of the same victims
    has them.
    """
    if len({(result.means["blind_psnr"], result.means["blind_ssim"]) for result in results}) > 1:
        return None
    every = [(name, mean) for result in reversed(results) for name, mean in result.means.items()]
    return {name.removeprefix("blind_"): mean for name, mean in every if name.startswith("blind_")}


def top1(means: Mapping[str, Mean]) -> Cell:
    """How often the original is the nearest candidate, by pixels and by LPIPS, or by pixels alone.

    >>> top1({"top1_pixels": Mean(0.21, None, None), "top1_lpips": Mean(0.01, None, None)}).text
    '21 / 1 %'
    """
    pixels, deep = means.get("top1_pixels"), means.get("top1_lpips")
    if pixels is None:
        return Cell("–")
    told = f"{100 * pixels.value:.0f}" + ("" if deep is None else f" / {100 * deep.value:.0f}")
    return Cell(f"{told} %", value=pixels.value)


def interval(mean: Mean | None, digits: int) -> str:
    """A mean and its interval as text.

    >>> interval(Mean(12.34, 11.5, 13.0), 1), interval(Mean(0.5, None, None), 2), interval(None, 1)
    ('12.3 [11.5, 13.0]', '0.50', '–')
    """
    if mean is None:
        return "–"
    told = f"{mean.value:.{digits}f}"
    if mean.low is None or mean.high is None:
        return told
    return f"{told} [{mean.low:.{digits}f}, {mean.high:.{digits}f}]"


def _mean(mean: Mean | None, digits: int) -> str:
    return "–" if mean is None else f"{mean.value:.{digits}f}"


def _table_note(results: Sequence[AuditResult]) -> str:
    told = (
        "Means over all images; in brackets the 95 % interval, a percentile bootstrap over the victims. "
        "Noise: the share of it in the reconstruction. Labels read: the share that the upload gives away. "
        "Bytes: what one client's upload would take, packed; 4 an entry in full. "
    )
    candidates = results[0].candidates
    if candidates is not None:
        told += (
            f"Identified: how often the original is the nearest of {candidates} candidates, by the "
            f"correlation of pixels / by LPIPS; by luck {100 / candidates:.2g} %. "
        )
    told += (
        "The blind guess has the best PSNR, SSIM and LPIPS of all guesses at each image; noise and "
        f"identification are those of the guess with the best PSNR. {_limits(results[0])} "
    )
    diverged = sum(sum(result.diverged) for result in results)
    if diverged:
        told += f"{diverged} attacks diverged and count with the best they had. "
    for (defense, _), result in zip(pair_names(results), results, strict=True):
        if result.tuned is not None:
            told += f"{defense} against {result.attack}: attacker tuned: {tuned(result)}. "
    return told.strip()


def _limits(result: AuditResult) -> str:
    """The paper's four thresholds in words, as this audit has them."""
    metrics = result.settings.get("metrics")
    held = metrics if isinstance(metrics, Mapping) else {}
    psnr, ssim, lpips, noise = (
        held.get(name, getattr(PAPER, name)) for name in ("psnr", "ssim", "lpips", "noise")
    )
    paper = (psnr, ssim, lpips, noise) == (PAPER.psnr, PAPER.ssim, PAPER.lpips, PAPER.noise)
    whose = "By the paper's thresholds" if paper else "By the thresholds of this audit"
    return (
        f"{whose} an image is visible at a PSNR of {psnr:g} dB or more, an SSIM of {ssim:g} or more, an "
        f"LPIPS of {lpips:g} or less, a noise of {noise:g} or less; LPIPS and noise are shown "
        "and have no vote."
    )


def _facts(first: AuditResult, source: str) -> list[tuple[str, str]]:
    model = first.settings.get("model")
    named = model if isinstance(model, Mapping) else {}
    return [
        ("victims", str(first.victims)),
        ("batch", str(first.batch)),
        ("blind guess", f"{first.means['blind_psnr'].value:.1f} dB"),
        ("model", f"{named.get('name', '?')}, {named.get('parameters', 0):,} parameters"),
        *([("source", source)] if source else []),
    ]


def _distribution(
    pairs: Sequence[tuple[tuple[str, str], AuditResult]], score: str, title: str, axis: str, unit: str
) -> Distribution:
    first = pairs[0][1]
    digits = 1 if score == "psnr" else 2
    references = [Reference("blind guess, mean", round(first.means[f"blind_{score}"].value, digits))]
    metrics = first.settings.get("metrics")
    limit = metrics.get(score) if isinstance(metrics, Mapping) else None
    if isinstance(limit, int | float):
        references.append(Reference("exposed from", float(limit)))
    strips = [Strip(defense, attack, result.scores(score)) for (defense, attack), result in pairs]
    told = "Every dot is an image, the box holds the middle half, the mark is the median."
    return Distribution(title, axis, strips, references, told, unit)


def _gallery(pairs: Sequence[tuple[tuple[str, str], AuditResult]]) -> Gallery:
    groups = []
    for (defense, attack), result in pairs:
        cards = [_card(result, i) for i in range(min(_SHOWN, len(result.findings)))]
        more = len(result.findings) - len(cards)
        told = f"The first {len(cards)} of {len(result.findings)} images. " if more else ""
        who, how = "; the others" if result.verdict.by_chance else ",", why(result)
        how = f"{who} {how}" if how else ""
        groups.append(Group(defense, attack, cards, f"{told}{result.verdict.reason}{how}."))
    told = "Robust data is what Refiner takes the gradient of; values outside 0..1 are clipped for the eye."
    return Gallery("Image by image", groups, told if any(r.robust is not None for _, r in pairs) else "")


def _card(result: AuditResult, i: int) -> Card:
    found = result.findings[i]
    return Card(
        name=found.name,
        original=result.original[i],
        reconstruction=result.reconstruction[i],
        robust=None if result.robust is None else result.robust[i],
        scores=_scores(found, result.candidates),
        verdict=found.verdict.level,
    )


def _scores(found: Finding, candidates: int | None) -> list[tuple[str, str]]:
    scores = [("PSNR", f"{found.psnr:.1f} dB"), ("blind", f"{found.blind_psnr:.1f} dB")]
    scores += [("SSIM", f"{found.ssim:.2f}"), ("blind", f"{found.blind_ssim:.2f}")]
    scores += [] if found.lpips is None else [("LPIPS", f"{found.lpips:.3f}")]
    scores += [] if found.noise is None else [("noise", f"{found.noise:.2f}")]
    scores += [] if found.rank_pixels is None else [("rank", f"{found.rank_pixels:g} of {candidates}")]
    scores += [] if found.rank_lpips is None else [("LPIPS rank", f"{found.rank_lpips:g} of {candidates}")]
    return scores
