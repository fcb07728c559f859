"""The table of a recommendation, and its page."""

from datetime import UTC, datetime
from pathlib import Path

from refiner.recommendation.result import Recommendation, Row
from refiner.recommendation.search_plan import SearchPlan
from refiner.report import (
    Cell,
    CodeBlock,
    Dot,
    Page,
    ReferenceLine,
    Scatter,
    Section,
    SettingsTable,
    Table,
    write_page,
)

COLUMNS = (
    "defence",
    "target",
    "strongest attack",
    "PSNR, dB",
    "visible",
    "or identifiable",
    "gradient error",
    "PMM, %",
    "time",
    "bytes",
    "clients",
)


def table_rows(recommendation: Recommendation) -> list[list[str | Cell]]:
    """Return a row for every candidate in the order of preference, and one for undefended uploads."""
    bare = recommendation.undefended
    return [
        *([_row(row) for row in recommendation.rows]),
        [
            "none",
            "–",
            bare.attack,
            f"{bare.psnr.value:.1f}",
            str(bare.visible),
            str(bare.identifiable),
            "0",
            "100" if any(row.price.pmm is not None for row in recommendation.rows) else "–",
            "1 ×",
            "–",
            str(bare.visible.total),
        ],
    ]


def _row(row: Row) -> list[str | Cell]:
    worst, price = row.evidence.or_worse(row.trained), row.price
    met = "met" if row.is_met else "missed"
    return [
        row.defense,
        met if row.is_final else f"{met} so far" if row.is_met else met,
        worst.attack,
        f"{worst.psnr.value:.1f}",
        str(worst.visible),
        str(worst.identifiable),
        f"{price.gradient_error:.2g}",
        "–" if price.pmm is None else f"{price.pmm:.1f}",
        Cell(f"{price.slowdown:.{0 if price.slowdown >= 10 else 1}f} ×", value=price.slowdown),
        "–" if price.upload_bytes is None else f"{price.upload_bytes:,}",
        str(row.clients),
    ]


def write_recommendation(path: Path, recommendation: Recommendation, source: str = "") -> Path:
    """Write a recommendation as one self-contained HTML file.

    Args:
        path: The file.
        recommendation: What `recommend` returned.
        source: Where the images come from, as shown on the page.

    Returns:
        The path.

    Raises:
        DataError: The file can't be written.
    """
    plan = recommendation.plan
    sections: list[Section] = [
        *([CodeBlock("Lines for your training loop", recommendation.code)] if recommendation.chosen else []),
        Table(
            "What every defence reaches, and what it costs",
            COLUMNS,
            table_rows(recommendation),
            _note(recommendation),
            definitions(plan),
        ),
        *([_front(recommendation)] if recommendation.rows else []),
        SettingsTable({"plan": recommendation.record()["plan"]}, note="The same plan gives the same result."),
    ]
    page = Page(
        title="Which defence to take",
        summary=recommendation.sentence,
        facts=[
            ("target", plan.target.text),
            ("batch size", str(plan.batch)),
            ("attacks that work", ", ".join(recommendation.attacks) or "none"),
            *([("images from", source)] if source else []),
        ],
        sections=sections,
        made=datetime.now(UTC).replace(microsecond=0),
    )
    return write_page(path, page)


def _front(recommendation: Recommendation) -> Scatter:
    """The strongest attack's PSNR against the gradient error."""
    bare = recommendation.undefended
    dots = [Dot("none", 0.0, bare.psnr.value)]
    for row in recommendation.rows:
        worst = row.evidence.or_worse(row.trained)
        dots.append(
            Dot(
                row.defense.replace(":", " (", 1) + (")" if ":" in row.defense else ""),
                row.price.gradient_error,
                worst.psnr.value,
            )
        )
    return Scatter(
        "Privacy against price",
        dots,
        f"gradient error of an upload with batches of {recommendation.plan.batch}",
        "PSNR of the strongest attack in dB, lower reveals less",
        [ReferenceLine("blind guess", round(bare.blind_psnr, 1))],
        "The best defences are at the bottom left.",
        "dB",
    )


def _note(recommendation: Recommendation) -> str:
    text = "Candidates that meet the target come first, then the cheaper ones. "
    if recommendation.failing:
        text += f"Without effect on this model: {', '.join(recommendation.failing)}. "
    for name, reason in recommendation.skipped.items():
        text += f"{name} does not apply: {reason}. "
    return text.strip()


def definitions(plan: SearchPlan) -> list[tuple[str, str]]:
    """Return what each column means."""
    return [
        ("target", f"Whether it is met: {plan.target.text}. “So far”: left behind before the last rung."),
        ("PSNR", "Of the strongest attack, on the untrained or the trained model; higher reveals more."),
        ("visible, or identifiable", "Images by the attack that reveals most; visible ones count in both."),
        (
            "gradient error",
            f"Of an upload with batches of {plan.batch}, relative to the gradient's length. Noise that is "
            "fresh in every upload averages out in a training: compare PMM then.",
        ),
        ("PMM", "Accuracy after a short training relative to undefended; – if it was not measured."),
        ("time", "Of one upload, in multiples of an undefended one."),
        ("clients", "How many were attacked: more for candidates that came further."),
    ]
