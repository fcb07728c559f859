"""The HTML report of audits: the answer, images, ranked defences, and all details folded below them."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from refiner.audit.control import UNDEFENDED
from refiner.audit.display_names import pair_names, shared_settings
from refiner.audit.ranking import COLUMNS as RANKING_COLUMNS
from refiner.audit.ranking import RankedDefense, first_choice, rank_defenses, ranking_note, ranking_rows
from refiner.audit.report_figures import distribution, gallery, image_grid, privacy_against_price
from refiner.audit.report_table import column_definitions, columns, table_note, table_rows
from refiner.audit.result import AuditResult
from refiner.audit.summary import (
    blind_sentence,
    by_defense,
    identification_counts,
    main_sentences,
    other_sentences,
    verdict_note,
)
from refiner.errors import DataError
from refiner.report import VERDICTS, Page, Section, SettingsTable, Table, Verdict, write_page

# Of more defences the summary describes only the first choice; the ranked table has all of them.
_DESCRIBED_DEFENSES = 3


def write_report(
    path: str | os.PathLike[str],
    results: Sequence[AuditResult],
    source: str = "",
    *,
    pmm: Mapping[str, float] | None = None,
    further: Sequence[Section] = (),
) -> Path:
    """Write the report of audits as one self-contained HTML file.

    Args:
        path: Where to write it; missing folders are created.
        results: The audits to compare, all of the same victims.
        source: Where the victims' images come from, as shown in the report.
        pmm: PMM in per cent, by the name of the defence as the report shows it, where it was measured.
        further: Sections of other audits of the same clients, such as `membership_sections`.

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
    return write_page(path, report_page(results, source, pmm=pmm, further=further))


def report_page(
    results: Sequence[AuditResult],
    source: str = "",
    *,
    pmm: Mapping[str, float] | None = None,
    further: Sequence[Section] = (),
) -> Page:
    """Return the contents of the report.

    The answer, the images and the ranked defences come first; the scores of every defence and attack, their
    distributions, all images and the settings are folded away.

    Args:
        results: The audits to compare, all of the same victims.
        source: Where the victims' images come from, as shown in the report.
        pmm: As in `write_report`.
        further: As in `write_report`.

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
    ranked = rank_defenses(results, pmm)
    sections: list[Section] = [
        image_grid(_undefended_first(ranked)),
        Table(
            "Privacy and price of every defence",
            RANKING_COLUMNS,
            ranking_rows(ranked),
            ranking_note(ranked),
        ),
    ]
    plot = privacy_against_price(ranked)
    if plot is not None:
        sections.append(plot)
    sections += further
    details: list[Section] = [
        Table(
            "Scores of every defence and attack",
            columns(results),
            table_rows(results),
            table_note(results),
            column_definitions(results),
        ),
        distribution(audits, "psnr", "PSNR of every image", "PSNR in dB, higher reveals more", "dB"),
        distribution(audits, "ssim", "SSIM of every image", "SSIM, higher reveals more", ""),
        gallery(audits),
        SettingsTable(
            shared_settings(names, results),
            note="Everything that the results depend on. The same settings and device give the same results.",
            collapsed=False,
        ),
    ]
    sentences, other = main_sentences(results), other_sentences(results)
    many = len(by_defense(results)) > _DESCRIBED_DEFENSES
    described = sentences[:1] if many else sentences
    return Page(
        title="How much of your data can be reconstructed",
        answer=first_choice(ranked),
        summary=" ".join([*described, blind_sentence(results)]),
        facts=_facts(results[0], source),
        sections=sections,
        folded=details,
        note=(" ".join([*(sentences[1:] if many else []), *other[1:]]), verdict_note(results)),
        verdict=page_verdict(results),
        verdict_text=_badge_text(results),
        made=max(result.made for result in results),
    )


def _undefended_first(ranked: Sequence[RankedDefense]) -> list[RankedDefense]:
    """Return the defences in their order, after those without one: what there is to hide."""
    return sorted(ranked, key=lambda each: each.strongest.defense != UNDEFENDED)


def page_verdict(results: Sequence[AuditResult]) -> Verdict | None:
    """Return the verdict by the strongest attack on the defence, or None if several defences are compared."""
    audits = list(zip(pair_names(results), results, strict=True))
    defended = [(name, result) for (name, _), result in audits if result.defense != "none"]
    defended = defended or [(name, result) for (name, _), result in audits]
    if len({name for name, _ in defended}) > 1:
        return None
    return min((result.verdict.level for _, result in defended), key=VERDICTS.index)


def _badge_text(results: Sequence[AuditResult]) -> str:
    """Return the words of the badge where identification did not count; empty where it did."""
    if page_verdict(results) != "neither" or all(map(identification_counts, results)):
        return ""
    return "not visible; identification not tested"


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
