"""Rows of pictures to compare from top to bottom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from refiner.report.markup import paragraph, text
from refiner.report.picture import Picture, image

_PER_PLATE = 5  # as many as a phone shows side by side


@dataclass(frozen=True)
class PictureRow:
    """Pictures side by side under one label; the n-th of each row stand above each other."""

    label: str
    images: Sequence[Picture]


@dataclass(frozen=True)
class Comparison:
    """Rows of pictures to compare from top to bottom, as raw above robust.

    >>> Comparison("Raw and robust", "Each column is one picture.", []).title
    'Raw and robust'
    """

    kind: ClassVar[str] = "Figure"
    title: str
    note: str
    rows: Sequence[PictureRow]

    def html(self, anchor: str) -> str:
        """The rows in plates, each as wide as a phone can show."""
        longest = max((len(row.images) for row in self.rows), default=0)
        # As even as possible: eight pictures are four and four, not five and three.
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


def _row(row: PictureRow, start: int, width: int) -> str:
    pictures = "".join(_picture(picture) for picture in row.images[start : start + width])
    label = text(row.label)
    return (
        f'<div role="group" aria-label="{label}">\n<p class="label">{label}</p>\n'
        f'<div class="strip">\n{pictures}</div>\n</div>\n'
    )


def _picture(picture: Picture) -> str:
    caption = f"<figcaption>{text(picture.caption)}</figcaption>" if picture.caption.strip() else ""
    return f"<figure>{image(picture.pixels, picture.alt)}{caption}</figure>\n"
