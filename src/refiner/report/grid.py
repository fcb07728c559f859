"""Reconstructions under several defences beside their original: a row for each image."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from refiner.errors import DataError
from refiner.report.inline_image import Pixels, check_pixels, img_element
from refiner.report.markup import count_of, escape, paragraph
from refiner.report.verdict import VERDICTS, Verdict, badge, check_verdict, css_class, icon


@dataclass(frozen=True, eq=False)
class GridImage:
    """One reconstruction in a grid.

    Args:
        pixels: uint8 `[height, width, 3]`.
        score: Shown below it, as "12.3 dB"; may be empty.
        verdict: Shown as an icon before the score, and read to those who can't see it.

    Raises:
        DataError: if the pixels have another shape or type.
        SettingError: if `verdict` is none of `VERDICTS`.
    """

    pixels: Pixels
    score: str = ""
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        check_pixels("pixels", self.pixels)
        check_verdict(self.verdict)


@dataclass(frozen=True)
class GridColumn:
    """The reconstructions of all images under one defence.

    Args:
        name: Name of the defence.
        images: One reconstruction for every original, in the same order.
        detail: Text below the name, as the attack; may be empty.
        verdict: The verdict on the defence.

    Raises:
        SettingError: if `verdict` is none of `VERDICTS`.
    """

    name: str
    images: Sequence[GridImage]
    detail: str = ""
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        check_verdict(self.verdict)


@dataclass(frozen=True, eq=False)
class Grid:
    """A figure: a table of images, one row per original and one column per defence.

    Args:
        title: Heading of the section.
        names: Names of the images.
        originals: uint8 `[height, width, 3]` each, in the order of the names.
        columns: One column per defence.
        total: Number of images that there are; those that are not shown are counted below the grid.
            None if all are shown.
        note: Text below the heading; may be empty.

    Raises:
        DataError: if a column has another number of images than there are names, or an original has another
            shape or type.

    >>> import numpy as np
    >>> grey = np.full((32, 32, 3), 128, np.uint8)
    >>> column = GridColumn("refiner", [GridImage(grey, "9.1 dB", "neither")], "inverting", "neither")
    >>> "1 image more is not shown." in Grid("Images", ["frog"], [grey], [column], total=2).html("a")
    True
    """

    caption_label: ClassVar[str] = "Figure"
    title: str
    names: Sequence[str]
    originals: Sequence[Pixels]
    columns: Sequence[GridColumn]
    total: int | None = None
    note: str = ""

    def __post_init__(self) -> None:
        lengths = {"originals": len(self.originals)}
        lengths |= {f"column '{column.name}'": len(column.images) for column in self.columns}
        for name, length in lengths.items():
            if length != len(self.names):
                raise DataError(
                    f"grid '{self.title}', {name}: {length} images, expected {len(self.names)}",
                    field="columns",
                    value=length,
                    expected=f"{len(self.names)} images",
                )
        for pixels in self.originals:
            check_pixels("originals", pixels)

    def html(self, anchor: str) -> str:
        """Return the table in a box that scrolls on its own where there are many defences, and its legend."""
        head = "".join(map(_column_head, self.columns))
        body = "".join(self._row(number) for number in range(len(self.names)))
        hidden = (len(self.names) if self.total is None else self.total) - len(self.names)
        verb = "is" if hidden == 1 else "are"
        more = f"{count_of(hidden, 'image')} more {verb} not shown." if hidden > 0 else ""
        return (
            f"{paragraph(self.note, 'note')}"
            f'<div class="scroll" role="region" aria-label="{escape(self.title)}" tabindex="0">\n'
            f'<table class="images">\n<thead><tr><th scope="col">original</th>{head}</tr></thead>\n'
            f"<tbody>\n{body}</tbody>\n</table>\n</div>\n{paragraph(more, 'note')}{self._legend()}"
        )

    def _row(self, number: int) -> str:
        name = self.names[number]
        cells = "".join(_cell(name, column, column.images[number]) for column in self.columns)
        original = img_element(self.originals[number], f"{name}, original")
        return f'<tr><th scope="row">{original}<span class="name">{escape(name)}</span></th>{cells}</tr>\n'

    def _legend(self) -> str:
        present = {image.verdict for column in self.columns for image in column.images}
        badges = " ".join(badge(verdict, long=True) for verdict in VERDICTS if verdict in present)
        return (
            f'<p class="legend">Below each image its score, and whether it is {badges}</p>\n'
            if badges
            else ""
        )


def _column_head(column: GridColumn) -> str:
    detail = f'<span class="detail">{escape(column.detail)}</span>' if column.detail.strip() else ""
    verdict = badge(column.verdict) if column.verdict is not None else ""
    return f'<th scope="col"><span class="name">{escape(column.name)}</span>{verdict}{detail}</th>'


def _cell(name: str, column: GridColumn, image: GridImage) -> str:
    shown = img_element(image.pixels, f"{name}, reconstruction with {column.name}")
    if image.verdict is None:
        return f'<td>{shown}<span class="score">{escape(image.score)}</span></td>'
    words = f'<span class="unseen">{"" if not image.score else ", "}{image.verdict}</span>'
    return (
        f'<td>{shown}<span class="score {css_class(image.verdict)}" title="{image.verdict}">'
        f"{icon(image.verdict)}{escape(image.score)}{words}</span></td>"
    )
