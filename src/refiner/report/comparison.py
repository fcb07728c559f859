"""Rows of images to compare from top to bottom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from refiner.report.inline_image import InlineImage, image
from refiner.report.markup import paragraph, text

_PER_PLATE = 5  # as many as a phone shows side by side


@dataclass(frozen=True)
class ImageRow:
    """Images side by side under one label; the n-th of each row stand above each other."""

    label: str
    images: Sequence[InlineImage]


@dataclass(frozen=True)
class Comparison:
    """Rows of images to compare from top to bottom, as raw above robust.

    >>> Comparison("Raw and robust", "Each column is one image.", []).title
    'Raw and robust'
    """

    kind: ClassVar[str] = "Figure"
    title: str
    note: str
    rows: Sequence[ImageRow]

    def html(self, anchor: str) -> str:
        """The rows in plates, each as wide as a phone can show."""
        longest = max((len(row.images) for row in self.rows), default=0)
        # As even as possible: eight images are four and four, not five and three.
        plates = -(-longest // _PER_PLATE)
        width = -(-longest // plates) if plates else 0
        body = "".join(
            '<div class="plate">\n'
            + "".join(_row(row, start, width) for row in self.rows if row.images[start : start + width])
            + "</div>\n"
            for start in range(0, longest, max(width, 1))
        )
        single = " single" if plates == 1 else ""
        return (
            f"{paragraph(self.note, 'note')}"
            f'<div class="plates{single}" style="--columns:{width}">\n{body}</div>\n'
        )


def _row(row: ImageRow, start: int, width: int) -> str:
    figures = "".join(_figure(entry) for entry in row.images[start : start + width])
    label = text(row.label)
    return (
        f'<div role="group" aria-label="{label}">\n<p class="label">{label}</p>\n'
        f'<div class="strip">\n{figures}</div>\n</div>\n'
    )


def _figure(entry: InlineImage) -> str:
    caption = f"<figcaption>{text(entry.caption)}</figcaption>" if entry.caption.strip() else ""
    return f"<figure>{image(entry.pixels, entry.alt)}{caption}</figure>\n"
