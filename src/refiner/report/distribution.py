"""How a metric is spread over the victims: a strip of dots for every defence and attack."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles
from typing import ClassVar

from refiner.errors import DataError
from refiner.report.markup import counted, paragraph, text
from refiner.report.scale import Scale

_HEIGHT = (
    32  # of a strip; the dashes of the reference lines divide it, so that they go on from strip to strip
)
_LINE = 18  # of the name of a reference
_BOX_FROM = 5  # fewer values have no quartiles to speak of
_LONG = 12  # strips; as many as a screen shows with the scale
_GOLDEN = 0.6180339887


@dataclass(frozen=True)
class Strip:
    """A metric of every victim of one attack on one defence; what is infinite is drawn at the scale's end."""

    defense: str
    attack: str
    values: Sequence[float]

    def __post_init__(self) -> None:
        if not self.values or any(math.isnan(value) for value in self.values):
            what = "holds NaN" if self.values else "empty"
            raise DataError(f"values of '{self.defense}' against '{self.attack}': {what}, expected numbers")


@dataclass(frozen=True)
class Reference:
    """A value to hold the strips against, as that of a blind guess."""

    name: str
    value: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise DataError(f"reference '{self.name}': {self.value}, expected a finite number")

    def label(self, unit: str = "") -> str:
        """Name, value and unit.

        >>> Reference("blind guess", 14.1).label("dB")
        'blind guess 14.1 dB'
        """
        return f"{self.name} {self.value:g} {unit}".strip()


@dataclass(frozen=True)
class Distribution:
    """Strips under each other on one scale, with reference lines through all of them.

    >>> strips = [Strip("none", "InvertingGrad", [31.0, 33.5, 32.2])]
    >>> Distribution("PSNR", "PSNR in dB", strips, [Reference("blind guess", 14.1)], unit="dB").unit
    'dB'
    """

    kind: ClassVar[str] = "Figure"
    title: str
    axis: str
    """what the scale shows, in words"""
    strips: Sequence[Strip]
    references: Sequence[Reference] = ()
    note: str = ""
    unit: str = ""

    def html(self, anchor: str) -> str:
        """One SVG a strip, all as wide as the page allows: positions are shares, text keeps its size."""
        if not self.strips:
            return paragraph(self.note, "note")
        references = sorted(self.references, key=lambda reference: reference.value)
        known = [value for strip in self.strips for value in strip.values if math.isfinite(value)]
        known += [reference.value for reference in references]
        scale = Scale.over(min(known, default=0.0), max(known, default=1.0))
        lines = _lines(scale, references)
        strips, last = "", None
        for number, strip in enumerate(self.strips, start=1):
            strips += _strip(self, strip, scale, lines, f"{anchor}-strip-{number}", strip.defense == last)
            last = strip.defense
        # A long chart has its scale at both ends, so that one of them is in sight.
        top = f'<div class="axis top">{_axis(scale, above=True)}</div>\n' if len(self.strips) > _LONG else ""
        return (
            f'{paragraph(self.note, "note")}<div class="chart">\n'
            f'{top}<div class="names"><span class="median-name">median</span>'
            f"{_names(references, scale, self.unit)}</div>\n"
            f'{strips}<div class="axis">{_axis(scale)}<p>{text(self.axis)}</p></div>\n</div>\n'
        )


def _lines(scale: Scale, references: Sequence[Reference]) -> str:
    grid = "".join(_line("grid", scale.percent(tick), 0, _HEIGHT) for tick in scale.ticks())
    return grid + "".join(
        _line(f"reference dash-{n % 3}", scale.percent(reference.value), 0, _HEIGHT)
        for n, reference in enumerate(references)
    )


def _line(kind: str, at: float, top: float, bottom: float) -> str:
    return f'<line class="{kind}" x1="{at}%" x2="{at}%" y1="{top}" y2="{bottom}"/>'


def _strip(
    whole: Distribution, strip: Strip, scale: Scale, lines: str, anchor: str, same_defense: bool
) -> str:
    middle = median(strip.values)
    shown = _measure(middle, scale, whole.unit)
    return (
        f'<div class="row{" same" if same_defense else ""}">'
        f'<p class="who"><b>{text(strip.defense)}</b> <span>{text(strip.attack)}</span></p>'
        f'<p class="median">{text(shown)}</p>'
        f'<svg role="img" aria-labelledby="{anchor}" aria-describedby="{anchor}-told" height="{_HEIGHT}">'
        f'<title id="{anchor}">{text(strip.defense)} against {text(strip.attack)}</title>'
        f'<desc id="{anchor}-told">{text(_told(whole, strip, scale))}</desc>'
        f"{lines}{_marks(strip.values, scale)}{_line('middle', scale.percent(middle), 4, _HEIGHT - 4)}"
        "</svg></div>\n"
    )


def _told(whole: Distribution, strip: Strip, scale: Scale) -> str:
    """What the strip shows, in words."""
    least, middle, most = (_measure(find(strip.values), scale, whole.unit) for find in (min, median, max))
    told = f"{counted(len(strip.values), 'value')} from {least} to {most}, median {middle}"
    for reference in whole.references:
        above = sum(value > reference.value for value in strip.values)
        told += f"; {above} above {reference.label(whole.unit)}"
    return told


def _measure(value: float, scale: Scale, unit: str) -> str:
    return f"{value:.{scale.digits() + 1}f} {unit}".strip()


def _marks(values: Sequence[float], scale: Scale) -> str:
    """A box from the lower to the upper quartile, and every value as a dot."""
    box = ""
    if len(values) >= _BOX_FROM and all(map(math.isfinite, values)):
        low, _, high = (scale.percent(value) for value in quantiles(values, n=4, method="inclusive"))
        box = f'<rect class="box" x="{low}%" width="{high - low:.2f}%" y="7" height="{_HEIGHT - 14}" rx="3"/>'
    radius = 3.5 if len(values) <= 60 else 2.5
    dots = ""
    for n, value in enumerate(sorted(values)):
        # Spread over the height, evenly and the same each time, so that equal values don't hide each other.
        y = round(_HEIGHT / 2 + (n * _GOLDEN % 1 - 0.5) * (_HEIGHT - 18), 1)
        kind = "" if math.isfinite(value) else ' class="beyond"'
        dots += f'<circle{kind} cx="{scale.percent(value)}%" cy="{y}" r="{radius}"/>'
    return box + dots


def _names(references: Sequence[Reference], scale: Scale, unit: str) -> str:
    """A line of text for each reference, so that close ones don't write over each other."""
    height = _LINE * len(references) + 4
    names = ""
    # Names that point to the right come down the stairs, those that point left go up: no line crosses a name.
    left = [n for n, reference in enumerate(references) if scale.percent(reference.value) <= 50]
    order = left + [n for n in range(len(references) - 1, -1, -1) if n not in left]
    for row, n in enumerate(order):
        at, y = scale.percent(references[n].value), _LINE * row + 13
        side = 'dx="6"' if at <= 50 else 'dx="-6" text-anchor="end"'
        names += _line(f"reference dash-{n % 3}", at, y - 11, height)
        names += f'<text x="{at}%" y="{y}" {side}>{text(references[n].label(unit))}</text>'
    return f'<svg aria-hidden="true" height="{height}">{names}</svg>'


def _axis(scale: Scale, above: bool = False) -> str:
    edge, end, y = (23, 18, 12) if above else (0, 5, 20)
    marks = f'<line class="base" x1="0" x2="100%" y1="{edge}" y2="{edge}"/>'
    for tick in scale.ticks():
        at = scale.percent(tick)
        marks += _line("tick", at, edge, end)
        marks += f'<text x="{at}%" y="{y}" text-anchor="middle">{tick:.{scale.digits()}f}</text>'
    return f'<svg aria-hidden="true" height="24">{marks}</svg>'
