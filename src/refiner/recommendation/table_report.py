"""The table of a recommendation for tabular data, and its page."""

from datetime import UTC, datetime
from pathlib import Path

from refiner.recommendation.table_result import TableRecommendation
from refiner.report import Cell, CodeBlock, Page, Section, Table, write_page

COLUMNS = (
    "defence",
    "target",
    "strongest attack",
    "error",
    "leaks most",
    "its error",
    "identified",
    "gradient error",
    "PMM, %",
    "time",
)


def table_rows(found: TableRecommendation) -> list[list[str | Cell]]:
    """Return a row for every candidate in the order of preference, and one for undefended uploads."""
    rows: list[list[str | Cell]] = []
    for row in found.rows:
        worst, price = row.evidence, row.price
        rows.append(
            [
                row.defense,
                "met" if row.is_met else "missed",
                worst.attack,
                f"{worst.error:.2f}",
                worst.feature,
                f"{worst.feature_error:.2f}",
                str(worst.identified),
                price.error_text,
                "–" if price.pmm is None else f"{price.pmm:.1f}",
                Cell(f"{price.slowdown:.{0 if price.slowdown >= 10 else 1}f} ×", value=price.slowdown),
            ]
        )
    bare = found.undefended
    pmm = "–" if found.accuracy is None else "100"
    errors = (f"{bare.error:.2f}", bare.feature, f"{bare.feature_error:.2f}")
    rows.append(["none", "–", bare.attack, *errors, str(bare.identified), "0", pmm, "1 ×"])
    return rows


def write_table_recommendation(path: Path, found: TableRecommendation, source: str = "") -> Path:
    """Write a recommendation for tabular data as one self-contained HTML file.

    Args:
        path: The file.
        found: What `recommend_table` returned.
        source: Where the rows come from, as shown on the page.

    Returns:
        The path.

    Raises:
        DataError: The file can't be written.
    """
    note = "Candidates that meet the target and keep 90 % of the accuracy come first, by gradient error. "
    if found.failing:
        note += f"Without effect on this model: {', '.join(found.failing)}. "
    note += " ".join(f"{name} was not measured: {reason}." for name, reason in found.skipped.items())
    title = "What every defence reaches, and what it costs"
    sections: list[Section] = [
        *([CodeBlock("Lines for your training loop", found.code)] if found.chosen else []),
        Table(title, COLUMNS, table_rows(found), note.strip(), _definitions(found)),
    ]
    page = Page(
        title="Which defence to take",
        summary=found.sentence,
        facts=[
            ("target", found.target.text),
            ("batch size", str(found.batch)),
            ("attacks that work", ", ".join(found.attacks) or "none"),
            *([("rows from", source)] if source else []),
        ],
        sections=sections,
        made=datetime.now(UTC).replace(microsecond=0),
    )
    return write_page(path, page)


def _definitions(found: TableRecommendation) -> list[tuple[str, str]]:
    return [
        ("target", f"Whether it is met: {found.target.text}."),
        (
            "error",
            "Of a row by the strongest attack, relative to that of a blind guess, the mean of other rows: 0 "
            f"is exact, 1 no better than a guess. Mean over {found.clients} rows, each the batch of its own "
            "client; on the untrained or a trained model, whichever is worse.",
        ),
        ("leaks most", "The feature that is reconstructed best, and its error relative to a blind guess."),
        ("identified", "Rows whose reconstruction is closer to its original than to any other row."),
        (
            "gradient error",
            f"Of an upload with batches of {found.batch}, relative to the gradient's length. Noise that is "
            "fresh in every upload averages out in a training: compare PMM then.",
        ),
        ("PMM", "Accuracy after a short training relative to undefended; – if it was not measured."),
        ("time", "Of one upload, in multiples of an undefended one."),
    ]
