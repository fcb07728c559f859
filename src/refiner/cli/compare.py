"""`refiner compare`: what changed between two audits."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refiner.cli.common import Json, console, one_line_errors, print_json

if TYPE_CHECKING:
    from refiner.audit.comparison import AuditComparison


def compare(
    command: typer.Context,
    out_a: Annotated[Path, typer.Argument(help="Folder of the old audit: its --out.", show_default=False)],
    out_b: Annotated[Path, typer.Argument(help="Folder of the new audit.", show_default=False)],
    out: Annotated[
        Path | None, typer.Option(help="HTML page to write with both side by side. Default: none.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two audits: old and new scores of each defence and attack, and the settings that differ."""
    with one_line_errors(command):
        from refiner.audit.comparison import compare_results, load_results
        from refiner.audit.comparison_report import comparison_page
        from refiner.report import write_page

        comparison = compare_results(load_results(out_a, "out_a"), load_results(out_b, "out_b"))
        page = None
        if out is not None:
            page = write_page(out, comparison_page(comparison, str(out_a), str(out_b)))
        if as_json:
            print_json({**_record(comparison), "page": page})
            return
        _print(comparison)
        if page is not None:
            console.print(f"Page: {page}", highlight=False, soft_wrap=True)


def _print(comparison: "AuditComparison") -> None:
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    from refiner.audit.comparison_report import comparison_sentences
    from refiner.cli.audit_table import verdict_markup

    table = Table(box=SIMPLE, show_edge=False, padding=(0, 1, 0, 0))
    for name in ("defence", "attack"):
        table.add_column(name, overflow="fold")
    table.add_column("PSNR, dB: old → new", justify="right", no_wrap=True)
    table.add_column("verdict: old → new", no_wrap=True)
    for pair in comparison.pairs:
        scores = [result.means["psnr"].value for result in (pair.old, pair.new)]
        levels = [verdict_markup(result.verdict.level) for result in (pair.old, pair.new)]
        table.add_row(
            escape(pair.defense),
            escape(pair.attack),
            f"{scores[0]:.1f} → {scores[1]:.1f} ({pair.psnr_change:+.1f})",
            " → ".join(levels) if levels[0] != levels[1] else levels[0],
        )
    console.print(table)
    for sentence in comparison_sentences(comparison):
        console.print(sentence, highlight=False, markup=False)
    for each in comparison.differences:
        where = f" ({'; '.join(each.pairs)})" if each.pairs else ""
        console.print(f"{each.name}: {each.old} → {each.new}{where}", highlight=False, markup=False)
    if not comparison.differences:
        console.print("No setting differs.", highlight=False)


def _record(comparison: "AuditComparison") -> dict[str, object]:
    """Return a comparison for JSON."""
    from dataclasses import asdict

    from refiner.audit.comparison_report import comparison_sentences

    return {
        "pairs": [
            {
                "defense": pair.defense,
                "attack": pair.attack,
                "psnr_change": pair.psnr_change,
                **{
                    side: {
                        "made": result.made.isoformat(),
                        "verdict": asdict(result.verdict),
                        "means": {name: asdict(mean) for name, mean in result.means.items()},
                        "cost": None if result.cost is None else asdict(result.cost),
                        "upload_bytes": result.upload_bytes,
                    }
                    for side, result in (("old", pair.old), ("new", pair.new))
                },
            }
            for pair in comparison.pairs
        ],
        "only_old": list(comparison.only_old),
        "only_new": list(comparison.only_new),
        "differences": [asdict(each) for each in comparison.differences],
        "notes": comparison_sentences(comparison),
    }
