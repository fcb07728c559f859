"""Rows of images to compare from top to bottom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from refiner.report.inline_image import InlineImage, img_element
from refiner.report.markup import escape, paragraph

_IMAGES_PER_BLOCK = 5  # as many as a phone shows side by side


@dataclass(frozen=True)
class ImageRow:
    """Images side by side under one label.

    Args:
        label: What the row shows, as "raw".
        images: The images; the n-th images of all rows are aligned in a column.
    """

    label: str
    images: Sequence[InlineImage]


@dataclass(frozen=True)
class Comparison:
    """A figure: rows of images to compare from top to bottom, as raw above robust.

    Args:
        title: Heading of the section.
        note: Text below the heading; may be empty.
        rows: The rows, from top to bottom.

    >>> Comparison("Raw and robust", "Each column is one image.", []).title
    'Raw and robust'
    """

    caption_label: ClassVar[str] = "Figure"
    title: str
    note: str
    rows: Sequence[ImageRow]

    def html(self, anchor: str) -> str:
        """Return the rows, broken into blocks that are as wide as a phone can show."""
        longest = max((len(row.images) for row in self.rows), default=0)
        # Blocks are as even as possible: eight images are four and four, not five and three.
        blocks = -(-longest // _IMAGES_PER_BLOCK)
        width = -(-longest // blocks) if blocks else 0
        body = "".join(
            '<div class="plate">\n'
            + "".join(_row(row, start, width) for row in self.rows if row.images[start : start + width])
            + "</div>\n"
            for start in range(0, longest, max(width, 1))
        )
        single = " single" if blocks == 1 else ""
        return (
            f"{paragraph(self.note, 'note')}"
            f'<div class="plates{single}" style="--columns:{width}">\n{body}</div>\n'
        )


def _row(row: ImageRow, start: int, width: int) -> str:
    figures = "".join(_figure(image) for image in row.images[start : start + width])
    label = escape(row.label)
    return (
        f'<div role="group" aria-label="{label}">\n<p class="label">{label}</p>\n'
        f'<div class="strip">\n{figures}</div>\n</div>\n'
    )


def _figure(image: InlineImage) -> str:
    caption = f"<figcaption>{escape(image.caption)}</figcaption>" if image.caption.strip() else ""
    return f"<figure>{img_element(image.pixels, image.alt)}{caption}</figure>\n"
