"""The distribution of a metric over the victims: a strip of dots for every defence and attack."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import ClassVar

from refiner.errors import DataError
from refiner.report.markup import count_of, escape, paragraph
from refiner.report.scale import Scale

# Height of a strip in pixels; a multiple of the dash lengths, so that dashed lines continue across strips.
_HEIGHT = 32
_LINE_HEIGHT = 18  # of a reference line's name
_MIN_VALUES_FOR_BOX = 5  # with fewer values quartiles mean little
_LONG_CHART = 12  # more strips than this do not fit on a screen together with one axis
_GOLDEN_RATIO = 0.6180339887


@dataclass(frozen=True)
class Strip:
    """One row of dots: a metric of every victim of one attack on one defence.

    Args:
        defense: Name of the defence.
        attack: Name of the attack.
        values: One value per victim; infinite values are drawn at the end of the axis.

    Raises:
        DataError: if `values` is empty or contains NaN.
    """

    defense: str
    attack: str
    values: Sequence[float]

    def __post_init__(self) -> None:
        if not self.values or any(math.isnan(value) for value in self.values):
            problem = "contain NaN" if self.values else "are empty"
            raise DataError(
                f"values of '{self.defense}' against '{self.attack}': {problem}, expected numbers",
                field="values",
            )


@dataclass(frozen=True)
class ReferenceLine:
    """A line through all strips to compare them with, as the value of a blind guess.

    Args:
        name: What the value is.
        value: Where the line stands; finite.

    Raises:
        DataError: if the value is not finite.
    """

    name: str
    value: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise DataError(
                f"reference line '{self.name}' = {self.value}: expected a finite number",
                field="value",
                value=self.value,
                expected="a finite number",
            )

    def label(self, unit: str = "") -> str:
        """Return name, value and unit as text.

        >>> ReferenceLine("blind guess", 14.1).label("dB")
        'blind guess 14.1 dB'
        """
        return f"{self.name} {self.value:g} {unit}".strip()


@dataclass(frozen=True)
class Distribution:
    """A figure of strips on one common axis, with reference lines through all of them.

    Args:
        title: Heading of the section.
        axis: What the axis shows.
        strips: The rows, from top to bottom.
        references: Lines through all strips.
        note: Text below the heading; may be empty.
        unit: Unit of the values; may be empty.

    >>> strips = [Strip("none", "InvertingGrad", [31.0, 33.5, 32.2])]
    >>> Distribution("PSNR", "PSNR in dB", strips, [ReferenceLine("blind guess", 14.1)], unit="dB").unit
    'dB'
    """

    caption_label: ClassVar[str] = "Figure"
    title: str
    axis: str
    strips: Sequence[Strip]
    references: Sequence[ReferenceLine] = ()
    note: str = ""
    unit: str = ""

    def html(self, anchor: str) -> str:
        """Return one SVG per strip; positions are percentages, so that only the text has a fixed size."""
        if not self.strips:
            return paragraph(self.note, "note")
        references = sorted(self.references, key=lambda reference: reference.value)
        drawn = [value for strip in self.strips for value in strip.values if math.isfinite(value)]
        drawn += [reference.value for reference in references]
        scale = Scale.over(min(drawn, default=0.0), max(drawn, default=1.0))
        lines = _background_lines(scale, references)
        strips, last = "", None
        for number, strip in enumerate(self.strips, start=1):
            strips += _strip(self, strip, scale, lines, f"{anchor}-strip-{number}", strip.defense == last)
            last = strip.defense
        # A long chart has its axis at both ends, so that one of them is always on the screen.
        long = len(self.strips) > _LONG_CHART
        top = f'<div class="axis top">{_axis(scale, above=True)}</div>\n' if long else ""
        return (
            f'{paragraph(self.note, "note")}<div class="chart">\n'
            f'{top}<div class="names"><span class="median-name">median</span>'
            f"{_reference_names(references, scale, self.unit)}</div>\n"
            f'{strips}<div class="axis">{_axis(scale)}<p>{escape(self.axis)}</p></div>\n</div>\n'
        )


def _background_lines(scale: Scale, references: Sequence[ReferenceLine]) -> str:
    grid = "".join(_line("grid", scale.percent(tick), 0, _HEIGHT) for tick in scale.ticks())
    return grid + "".join(
        _line(f"reference dash-{n % 3}", scale.percent(reference.value), 0, _HEIGHT)
        for n, reference in enumerate(references)
    )


def _line(css_class: str, at: float, top: float, bottom: float) -> str:
    return f'<line class="{css_class}" x1="{at}%" x2="{at}%" y1="{top}" y2="{bottom}"/>'


def _strip(
    chart: Distribution, strip: Strip, scale: Scale, lines: str, anchor: str, same_defense: bool
) -> str:
    middle = median(strip.values)
    middle_text = _format(middle, scale, chart.unit)
    return (
        f'<div class="row{" same" if same_defense else ""}">'
        f'<p class="who"><b>{escape(strip.defense)}</b> <span>{escape(strip.attack)}</span></p>'
        f'<p class="median">{escape(middle_text)}</p>'
        f'<svg role="img" aria-labelledby="{anchor}" aria-describedby="{anchor}-text" height="{_HEIGHT}">'
        f'<title id="{anchor}">{escape(strip.defense)} against {escape(strip.attack)}</title>'
        f'<desc id="{anchor}-text">{escape(_description(chart, strip, scale))}</desc>'
        f"{lines}{_marks(strip.values, scale)}{_line('middle', scale.percent(middle), 4, _HEIGHT - 4)}"
        "</svg></div>\n"
    )


def _description(chart: Distribution, strip: Strip, scale: Scale) -> str:
    """Return the text alternative of a strip."""
    least, middle, most = (
        _format(function(strip.values), scale, chart.unit) for function in (min, median, max)
    )
    description = f"{count_of(len(strip.values), 'value')} from {least} to {most}, median {middle}"
    for reference in chart.references:
        above = sum(value > reference.value for value in strip.values)
        description += f"; {above} above {reference.label(chart.unit)}"
    return description


def _format(value: float, scale: Scale, unit: str) -> str:
    return f"{value:.{scale.digits() + 1}f} {unit}".strip()


def _marks(values: Sequence[float], scale: Scale) -> str:
    """Return a box from the lower to the upper quartile, and a dot for every value."""
    box = ""
    if len(values) >= _MIN_VALUES_FOR_BOX and all(map(math.isfinite, values)):
        low, _, high = (scale.percent(value) for value in quantiles(values, n=4, method="inclusive"))
        box = f'<rect class="box" x="{low}%" width="{high - low:.2f}%" y="7" height="{_HEIGHT - 14}" rx="3"/>'
    radius = 3.5 if len(values) <= 60 else 2.5
    dots = ""
    for n, value in enumerate(sorted(values)):
        # Spread evenly and deterministically over the height, so that equal values do not overlap.
        y = round(_HEIGHT / 2 + (n * _GOLDEN_RATIO % 1 - 0.5) * (_HEIGHT - 18), 1)
        css_class = "" if math.isfinite(value) else ' class="beyond"'
        dots += f'<circle{css_class} cx="{scale.percent(value)}%" cy="{y}" r="{radius}"/>'
    return box + dots


def _reference_names(references: Sequence[ReferenceLine], scale: Scale, unit: str) -> str:
    """Return the names of the reference lines, each in its own row so that close ones do not overlap."""
    height = _LINE_HEIGHT * len(references) + 4
    names = ""
    # Names right of their line are ordered downwards, names left of it upwards: no line crosses a name.
    left = [n for n, reference in enumerate(references) if scale.percent(reference.value) <= 50]
    order = left + [n for n in range(len(references) - 1, -1, -1) if n not in left]
    for row, n in enumerate(order):
        at, y = scale.percent(references[n].value), _LINE_HEIGHT * row + 13
        side = 'dx="6"' if at <= 50 else 'dx="-6" text-anchor="end"'
        names += _line(f"reference dash-{n % 3}", at, y - 11, height)
        names += f'<text x="{at}%" y="{y}" {side}>{escape(references[n].label(unit))}</text>'
    return f'<svg aria-hidden="true" height="{height}">{names}</svg>'


def _axis(scale: Scale, above: bool = False) -> str:
    baseline, tick_end, y = (23, 18, 12) if above else (0, 5, 20)
    marks = f'<line class="base" x1="0" x2="100%" y1="{baseline}" y2="{baseline}"/>'
    for tick in scale.ticks():
        at = scale.percent(tick)
        marks += _line("tick", at, baseline, tick_end)
        marks += f'<text x="{at}%" y="{y}" text-anchor="middle">{tick:.{scale.digits()}f}</text>'
    return f'<svg aria-hidden="true" height="24">{marks}</svg>'
