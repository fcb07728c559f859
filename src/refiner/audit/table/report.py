"""The table of an audit of tabular data, and its page."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from refiner.audit.table.result import TableAudit
from refiner.report import Cell, Page, Table, write_page

COLUMNS = ("defence", "attack", "error", "undefended", "leaks most", "its error", "identified", "verdict")
DEFINITIONS = (
    (
        "error",
        "Of a row, relative to that of a blind guess (the mean of other rows), each feature divided by its "
        "standard deviation: 0 is exact, 1 no better than a guess. Mean over all rows.",
    ),
    ("undefended", "The same attack's error without a defence."),
    ("leaks most", "The feature that is reconstructed best, and its error relative to a blind guess."),
    ("identified", "Rows whose reconstruction is closer to its original than to any other row."),
    (
        "verdict",
        "Revealed: the error is at most half of a blind guess's. Identifiable: more rows are identified than "
        "chance explains. No verdict: the attack fails without a defence.",
    ),
)


def table_rows(results: Sequence[TableAudit]) -> list[list[str | Cell]]:
    """Return a row for every defence and attack."""
    rows: list[list[str | Cell]] = []
    for result in results:
        (worst,) = result.worst(1)
        rows.append(
            [
                result.defense,
                result.attack,
                f"{result.error.value:.2f}",
                f"{result.undefended_error:.2f}",
                worst.name,
                f"{worst.relative:.2f}",
                str(result.identified),
                result.level,
            ]
        )
    return rows


def strongest(results: Sequence[TableAudit]) -> list[TableAudit]:
    """Return the result of each defence against the attack with the smallest error."""
    found: dict[str, TableAudit] = {}
    for result in results:
        known = found.get(result.defense)
        if known is None or result.error.value < known.error.value:
            found[result.defense] = result
    return list(found.values())


def write_table_report(path: Path, results: Sequence[TableAudit], source: str = "") -> Path:
    """Write the audits of one table as a self-contained HTML file.

    Args:
        path: The file.
        results: The audits, at least one.
        source: Where the rows come from, as shown on the page.

    Returns:
        The path.

    Raises:
        DataError: The file can't be written.
    """
    heads = [f"{result.defense}, {result.attack}" for result in results]
    features: list[list[str | Cell]] = [
        [feature.name, *(f"{result.features[i].relative:.2f}" for result in results)]
        for i, feature in enumerate(results[0].features)
    ]
    note = "Relative to that of a blind guess: 0 is exact, 1 no better than a guess."
    page = Page(
        title="What uploads reveal of a table",
        summary=" ".join(result.sentence for result in strongest(results)),
        facts=[
            ("clients", str(results[0].clients)),
            ("rows in a batch", str(results[0].batch)),
            *([("rows from", source)] if source else []),
        ],
        sections=[
            Table("What every attack reaches", COLUMNS, table_rows(results), definitions=list(DEFINITIONS)),
            Table("Error of every feature", ("feature", *heads), features, note),
        ],
        made=datetime.now(UTC).replace(microsecond=0),
    )
    return write_page(path, page)
