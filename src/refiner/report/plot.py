"""The frame of a plot with two axes: grid, ticks, axis titles and horizontal reference lines, as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass

from refiner.report.distribution import ReferenceLine
from refiner.report.markup import escape
from refiner.report.scale import Scale

HEIGHT = 300
"""Height of the area between the axes, in pixels; its width is that of the page."""


@dataclass(frozen=True)
class NamesAt:
    """Where the names of horizontal lines stand: at their left or right end, above or below them."""

    start: bool = False
    below: bool = False


def vertical(scale: Scale, value: float) -> float:
    """Return the vertical position of a value in pixels, from the top.

    >>> vertical(Scale(0.0, 10.0, 5.0), 10.0), vertical(Scale(0.0, 10.0, 5.0), 0.0)
    (0.0, 300.0)
    """
    return round(HEIGHT * (1 - scale.percent(value) / 100), 1)


def plot(
    x: Scale,
    y: Scale,
    marks: str,
    *,
    anchor: str,
    name: str,
    description: str,
    x_title: str,
    y_title: str,
    references: Sequence[ReferenceLine] = (),
    names_at: NamesAt,
    unit: str = "",
) -> str:
    """Return a plot as HTML: an SVG with both axes, and the titles of the axes as text.

    Horizontal positions are percentages and vertical ones pixels, so that only the text has a fixed size.

    Args:
        x: The horizontal scale.
        y: The vertical scale.
        marks: SVG elements in the area between the axes.
        anchor: The start of every id.
        name: The accessible name of the plot.
        description: The text alternative of the plot.
        x_title: What the horizontal axis shows.
        y_title: What the vertical axis shows.
        references: Horizontal lines.
        names_at: Where the names of these lines stand.
        unit: Unit of the values of the reference lines.

    Returns:
        The HTML; all texts in it are escaped.
    """
    frame = ""
    for tick in y.ticks():
        at = vertical(y, tick)
        frame += f'<line class="grid" x1="0" x2="100%" y1="{at}" y2="{at}"/>'
        frame += f'<text x="-8" y="{at + 4:g}" text-anchor="end">{y.label(tick)}</text>'
    for tick in x.ticks():
        at = x.percent(tick)
        frame += f'<line class="tick" x1="{at}%" x2="{at}%" y1="{HEIGHT}" y2="{HEIGHT + 5}"/>'
        frame += f'<text x="{at}%" y="{HEIGHT + 20}" text-anchor="middle">{x.label(tick)}</text>'
    frame += f'<line class="base" x1="0" x2="100%" y1="{HEIGHT}" y2="{HEIGHT}"/>'
    lines = ""
    for number, reference in enumerate(references):
        at = vertical(y, reference.value)
        lines += f'<line class="reference dash-{(number + 1) % 3}" x1="0" x2="100%" y1="{at}" y2="{at}"/>'
        place = 'x="4"' if names_at.start else 'x="100%" text-anchor="end"'
        y_name = at + 14 if names_at.below else at - 5
        lines += f'<text class="name" y="{y_name:g}" {place}>{escape(reference.label(unit))}</text>'
    return (
        f'<div class="plot"><p class="y-title">{escape(y_title)}</p>\n'
        f'<svg role="img" aria-labelledby="{anchor}-name" aria-describedby="{anchor}-text" '
        f'height="{HEIGHT + 26}">'
        f'<title id="{anchor}-name">{escape(name)}</title>'
        f'<desc id="{anchor}-text">{escape(description)}</desc>{frame}{lines}{marks}</svg>\n'
        f'<p class="x-title">{escape(x_title)}</p></div>\n'
    )
