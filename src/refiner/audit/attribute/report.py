"""The table of an audit of attribute inference, and its page."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from refiner.audit.attribute.result import AttributeAudit
from refiner.audit.roc_series import roc_series
from refiner.report import Cell, Page, RocPlot, RocSeries, Section, Table, write_page

COLUMNS = ("defence", "attribute", "score", "95 % interval", "undefended", "accuracy or error", "verdict")
DEFINITIONS = (
    (
        "score",
        "The area under the ROC curve: the probability that a client with the attribute scores above one "
        "without; 0.5 by chance. For mixed batches R², the part of a blind guess's squared error that is "
        "removed; 0 by chance.",
    ),
    ("undefended", "The same attack's score without a defence."),
    (
        "accuracy or error",
        "Balanced accuracy at a threshold from public clients; for mixed batches the mean absolute error of "
        "the share, beside that of a blind guess.",
    ),
    (
        "verdict",
        "Found: the interval lies above chance. Reversed: that of the AUC lies below 0.5; the attack is "
        "misled to the opposite answer, and an attacker who suspects it turns the answers around. Not found: "
        "neither, but that of undefended uploads lies above chance. No verdict: that does not either.",
    ),
)


def attribute_rows(results: Sequence[AttributeAudit]) -> list[list[str | Cell]]:
    """Return a row for every defence."""
    rows: list[list[str | Cell]] = []
    for result in results:
        if result.balanced_accuracy is not None:
            detail = f"{result.balanced_accuracy.value:.2f}"
        else:
            detail = f"{result.mae:.2f}, blind {result.blind_mae:.2f}"
        rows.append(
            [
                result.defense,
                result.attribute,
                f"{result.score.value:.2f}",
                f"{result.score.low:.2f} to {result.score.high:.2f}",
                f"{result.undefended.value:.2f}",
                detail,
                result.level,
            ]
        )
    return rows


def attribute_sections(results: Sequence[AttributeAudit]) -> list[Section]:
    """Return a table of all audits, and the ROC curve of each defence beside that without one.

    Args:
        results: The audits of one attribute; mixed batches have no ROC curve.
    """
    rows = attribute_rows(results)
    sections: list[Section] = [
        Table(f"Who has the attribute: {results[0].attribute}", COLUMNS, rows, definitions=list(DEFINITIONS))
    ]
    curves = [(result.defense, series) for result in results if (series := _series(result)) is not None]
    undefended = [replace(series, name="without a defence") for name, series in curves if name == "none"]
    for name, series in curves:
        others = [] if name == "none" else undefended
        sections.append(RocPlot(f"Clients with the attribute found behind {name}", [series, *others]))
    return sections


def _series(result: AttributeAudit) -> RocSeries | None:
    if result.curve is None:
        return None
    return roc_series(result.defense, result.curve, int((result.actual > 0.5).sum()))


def write_attribute_report(path: Path, results: Sequence[AttributeAudit], source: str = "") -> Path:
    """Write the audits of one attribute as a self-contained HTML file.

    Args:
        path: The file.
        results: The audits, at least one.
        source: Where the images come from, as shown on the page.

    Returns:
        The path.

    Raises:
        DataError: The file can't be written.
    """
    return write_page(path, attribute_page(results, source))


def attribute_page(results: Sequence[AttributeAudit], source: str = "") -> Page:
    """Return the report of the audits of one attribute.

    Args:
        results: The audits, at least one.
        source: Where the images come from, as shown on the page.
    """
    first = results[0]
    return Page(
        title=f"What uploads reveal of an attribute: {first.attribute}",
        summary=" ".join(result.sentence for result in results),
        facts=[
            ("clients", str(first.clients)),
            ("images in a batch", str(first.batch)),
            ("public images", f"{first.public:,}"),
            *([("images from", source)] if source else []),
        ],
        sections=attribute_sections(results),
        made=datetime.now(UTC).replace(microsecond=0),
    )
