"""A plot of labelled dots, as privacy against price with one dot for each defence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from refiner.errors import DataError
from refiner.report.distribution import ReferenceLine
from refiner.report.markup import escape, paragraph
from refiner.report.plot import HEIGHT, NamesAt, plot, vertical
from refiner.report.scale import LogScale, Scale
from refiner.report.verdict import Verdict, check_verdict, css_class

_RADIUS = 6
_LINE = 14  # height of a line of a label, in pixels
_WIDTH = 300  # of the plot on a phone; labels that do not overlap there do not overlap elsewhere
_LETTER = 6.6  # width of a letter
_LONGEST = 24  # letters in a line of a label
_WIDE_RANGE = 20  # values that differ by more than this factor are drawn on a logarithmic axis
# In this order: the first at which no dot is in the way is taken.
_NAME_PLACES = tuple(NamesAt(start, below) for below in (False, True) for start in (False, True))

Box = tuple[float, float, float, float]
"""Left, right, top and bottom in pixels, on a phone."""


@dataclass(frozen=True)
class Dot:
    """One labelled dot.

    Args:
        name: Its label; settings in brackets at its end go to a second line.
        x: Horizontal value, finite.
        y: Vertical value, finite.
        verdict: The verdict whose colour and word it has.

    Raises:
        DataError: if a value is not finite.
        SettingError: if `verdict` is none of `VERDICTS`.
    """

    name: str
    x: float
    y: float
    verdict: Verdict | None = None

    def __post_init__(self) -> None:
        check_verdict(self.verdict)
        if not (math.isfinite(self.x) and math.isfinite(self.y)):
            raise DataError(
                f"dot '{self.name}': ({self.x}, {self.y}), expected finite numbers",
                field="dot",
                value=(self.x, self.y),
                expected="finite numbers",
            )


@dataclass(frozen=True)
class Scatter:
    """A figure of labelled dots on two axes.

    Args:
        title: Heading of the section.
        dots: The dots.
        x_title: What the horizontal axis shows.
        y_title: What the vertical axis shows.
        references: Horizontal lines to compare the dots with.
        note: Text below the heading; may be empty.
        unit: Unit of the vertical values.

    >>> dots = [Dot("none", 0.0, 31.0, "visible"), Dot("refiner", 0.9, 9.5, "neither")]
    >>> Scatter("Privacy against price", dots, "gradient error", "PSNR, dB").title
    'Privacy against price'
    """

    caption_label: ClassVar[str] = "Figure"
    title: str
    dots: Sequence[Dot]
    x_title: str
    y_title: str
    references: Sequence[ReferenceLine] = ()
    note: str = ""
    unit: str = ""

    def html(self, anchor: str) -> str:
        """Return the plot; without dots only the note."""
        if not self.dots:
            return paragraph(self.note, "note")
        heights = [dot.y for dot in self.dots] + [reference.value for reference in self.references]
        x, y = _horizontal_scale([dot.x for dot in self.dots]), Scale.over(min(heights), max(heights), 5)
        boxes = {place: _name_boxes(self.references, y, self.unit, place) for place in _NAME_PLACES}
        free = [place for place in _NAME_PLACES if not _touches(self.dots, x, y, boxes[place])]
        names_at = free[0] if free else _NAME_PLACES[0]
        description = "; ".join(_description(dot, self.unit) for dot in self.dots)
        return paragraph(self.note, "note") + plot(
            x,
            y,
            _marks(self.dots, x, y, boxes[names_at]),
            anchor=f"{anchor}-plot",
            name=self.title,
            description=description,
            x_title=self.x_title,
            y_title=self.y_title,
            references=self.references,
            names_at=names_at,
            unit=self.unit,
        )


def _horizontal_scale(values: Sequence[float]) -> Scale:
    positive = [value for value in values if value > 0]
    if len(positive) > 1 and min(values) >= 0 and max(positive) > _WIDE_RANGE * min(positive):
        return LogScale.over_positive(min(positive), max(positive), with_zero=min(values) == 0)
    return Scale.over(min(0.0, *values), max(values) or 1.0, 4)


def _description(dot: Dot, unit: str) -> str:
    verdict = "" if dot.verdict is None else f", {dot.verdict}"
    return f"{dot.name}: {dot.y:.1f} {unit} at {dot.x:.3g}{verdict}".replace("  ", " ")


def _name_boxes(references: Sequence[ReferenceLine], y: Scale, unit: str, names_at: NamesAt) -> list[Box]:
    """Return the boxes of the names of the reference lines."""
    boxes = []
    for reference in references:
        width, at = len(reference.label(unit)) * _LETTER, vertical(y, reference.value)
        left = 0.0 if names_at.start else _WIDTH - width
        top = at if names_at.below else at - _LINE - 3
        boxes.append((left, left + width, top, top + _LINE + 3))
    return boxes


def _touches(dots: Sequence[Dot], x: Scale, y: Scale, boxes: Sequence[Box]) -> bool:
    """Return whether a dot or the start of its label touches one of the boxes."""
    places = [(x.percent(dot.x) / 100 * _WIDTH, vertical(y, dot.y)) for dot in dots]
    return any(
        left - 60 <= at <= right + 60 and upper - _RADIUS <= top <= lower + _RADIUS
        for at, top in places
        for left, right, upper, lower in boxes
    )


def _marks(dots: Sequence[Dot], x: Scale, y: Scale, boxes: Sequence[Box]) -> str:
    """Return dots and labels; labels that would overlap are moved apart, with a line to their dots."""
    circles = labels = ""
    taken = list(boxes)
    for dot in dots:
        at, top = x.percent(dot.x), vertical(y, dot.y)
        style = "" if dot.verdict is None else f' class="{css_class(dot.verdict)}"'
        circles += f'<circle{style} cx="{at}%" cy="{top}" r="{_RADIUS}"/>'
        taken.append((at / 100 * _WIDTH - _RADIUS, at / 100 * _WIDTH + _RADIUS, top - _RADIUS, top + _RADIUS))
    for dot in dots:
        lines = _label_lines(dot.name)
        at, top = x.percent(dot.x), vertical(y, dot.y)
        right = at <= 50
        width, height = max(map(len, lines)) * _LETTER, _LINE * len(lines)
        start = at / 100 * _WIDTH + (12 if right else -12 - width)
        best = _free_place(start, start + width, top - _LINE / 2, height, taken)
        taken.append((start, start + width, best, best + height))
        if abs(best + _LINE / 2 - top) > _LINE / 2:
            labels += (
                f'<svg x="{at}%" overflow="visible"><line class="leader" x1="0" y1="{top}" '
                f'x2="{10 if right else -10}" y2="{best + _LINE / 2:g}"/></svg>'
            )
        side = "" if right else ' text-anchor="end"'
        shift = 12 if right else -12
        # Nested, since a position in per cent can't be shifted by pixels for every line.
        first, *rest = lines
        spans = f'<tspan x="{shift}">{escape(first)}</tspan>'
        spans += "".join(
            f'<tspan class="detail" x="{shift}" dy="{_LINE}">{escape(line)}</tspan>' for line in rest
        )
        labels += (
            f'<svg x="{at}%" overflow="visible"><text class="label" y="{best + 11:g}"{side}>'
            f"<title>{escape(dot.name)}</title>{spans}</text></svg>"
        )
    return circles + labels


def _label_lines(name: str) -> list[str]:
    """Return a name in one or two lines, none of them longer than fits on a phone.

    >>> _label_lines("pruning (rate = 0.99)"), _label_lines("none")
    (['pruning', 'rate = 0.99'], ['none'])
    """
    base, _, settings = name.partition(" (")
    lines = [base, settings.removesuffix(")")] if settings else [base]
    return [line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…" for line in lines]


def _free_place(left: float, right: float, top: float, height: float, taken: Sequence[Box]) -> float:
    """Return the place nearest to `top` where a label overlaps nothing that is there already."""

    def is_free(place: float) -> bool:
        return (
            place >= -_LINE
            and place + height <= HEIGHT - 2
            and all(
                right < x0 or left > x1 or place + height <= y0 or place >= y1 for x0, x1, y0, y1 in taken
            )
        )

    shifts = sorted(range(-HEIGHT, HEIGHT, 4), key=abs)
    return next((top + shift for shift in shifts if is_free(top + shift)), top)
