"""A plot of curves, as the accuracy of trainings over their rounds."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from refiner.errors import DataError
from refiner.report.distribution import ReferenceLine
from refiner.report.markup import count_of, escape, paragraph
from refiner.report.plot import HEIGHT, NamesAt, plot, vertical
from refiner.report.scale import Scale

_MOST_DOTS = 40  # a curve of more points is drawn without dots
_LINE = 15  # height of a label in pixels
_LABEL_WIDTH = 25  # width of a label in per cent of the plot, on a wide screen
_ENOUGH = 3.0  # pixels between a label and a curve


@dataclass(frozen=True)
class CurveSeries:
    """One curve.

    Args:
        name: Its label.
        points: Pairs of horizontal and vertical values, from left to right; all finite.

    Raises:
        DataError: if there are no points, or one is not finite.
    """

    name: str
    points: Sequence[tuple[float, float]]

    def __post_init__(self) -> None:
        if not self.points or not all(math.isfinite(value) for point in self.points for value in point):
            problem = "not finite" if self.points else "no points"
            raise DataError(f"curve '{self.name}': {problem}, expected finite numbers", field="points")


@dataclass(frozen=True)
class Curves:
    """A figure of curves on two axes; the first is the main one.

    Args:
        title: Heading of the section.
        series: The curves.
        x_title: What the horizontal axis shows.
        y_title: What the vertical axis shows.
        references: Horizontal lines to compare the curves with.
        note: Text below the heading; may be empty.
        unit: Unit of the vertical values.

    >>> Curves("Accuracy", [CurveSeries("refiner", [(1, 10.0), (2, 12.5)])], "rounds", "%").title
    'Accuracy'
    """

    caption_label: ClassVar[str] = "Figure"
    title: str
    series: Sequence[CurveSeries]
    x_title: str
    y_title: str
    references: Sequence[ReferenceLine] = ()
    note: str = ""
    unit: str = ""

    def html(self, anchor: str) -> str:
        """Return the plot; without curves only the note."""
        if not self.series:
            return paragraph(self.note, "note")
        across = [x for series in self.series for x, _ in series.points]
        heights = [y for series in self.series for _, y in series.points]
        heights += [reference.value for reference in self.references]
        x = Scale.over(0.0, max(across) or 1.0, 4)
        y = _with_room_for_labels(Scale.over(min(heights), max(heights), 5), self.series)
        return paragraph(self.note, "note") + plot(
            x,
            y,
            "".join(_curve(series, x, y, number > 0) for number, series in enumerate(self.series))
            + _labels(self.series, x, y, self.unit),
            anchor=f"{anchor}-plot",
            name=self.title,
            description="; ".join(_description(series, self.unit) for series in self.series),
            x_title=self.x_title,
            y_title=self.y_title,
            references=self.references,
            names_at=NamesAt(start=True),
            unit=self.unit,
        )


def _description(series: CurveSeries, unit: str) -> str:
    (first, start), (last, end) = series.points[0], series.points[-1]
    count = count_of(len(series.points), "value")
    return f"{series.name}: {count}, {start:.4g} {unit} at {first:,g}, {end:.4g} {unit} at {last:,g}"


def _curve(series: CurveSeries, x: Scale, y: Scale, is_other: bool) -> str:
    """Return a curve; its line is stretched to the width of the page, its dots are not."""
    style = " other" if is_other else ""
    line = " ".join(f"{x.percent(at)},{vertical(y, value)}" for at, value in series.points)
    svg = (
        f'<svg width="100%" height="{HEIGHT}" viewBox="0 0 100 {HEIGHT}" preserveAspectRatio="none" '
        f'overflow="visible"><polyline class="curve{style}" points="{line}"/></svg>'
    )
    dots = series.points if len(series.points) <= _MOST_DOTS else series.points[-1:]
    circles = "".join(
        f'<circle class="{style.strip()}" cx="{x.percent(at)}%" cy="{vertical(y, value)}" r="3.5"/>'
        for at, value in dots
    )
    return svg + circles


def _with_room_for_labels(y: Scale, series: Sequence[CurveSeries]) -> Scale:
    """Return the scale, one step longer where a curve falls to its end so low that no label fits below it."""
    lowest = min(series, key=lambda each: each.points[-1][1]).points
    is_falling = lowest[-1][1] < lowest[max(0, len(lowest) - 5)][1]
    if is_falling and vertical(y, lowest[-1][1]) + 19 >= HEIGHT and y.low >= y.step:
        return Scale(y.low - y.step, y.high, y.step)
    return y


def _labels(series: Sequence[CurveSeries], x: Scale, y: Scale, unit: str) -> str:
    """Return name and last value of every curve beside its end, those of higher ends above lower ones."""
    ends = sorted(series, key=lambda each: each.points[-1][1], reverse=True)
    text, lowest = "", -math.inf
    for number, each in enumerate(ends):
        at, value = each.points[-1]
        side = "end" if x.percent(at) > 50 else "start"
        # The highest end has its label above the curve and all others below, unless that covers a curve.
        end = vertical(y, value)
        sides = (end - 9, end + 19) if number == 0 else (end + 19, end - 9)
        places = [max(top, lowest + _LINE) for top in sides if top < HEIGHT]
        lowest = max(places, key=lambda top: _clearance(top, x.percent(at), side, series, x, y))
        text += (
            f'<text class="label" x="{x.percent(at)}%" y="{lowest:g}" text-anchor="{side}">'
            f"<tspan>{escape(each.name)}</tspan> {value:.4g} {escape(unit)}</text>"
        )
    return text


def _clearance(top: float, end: float, side: str, series: Sequence[CurveSeries], x: Scale, y: Scale) -> float:
    """Return the pixels between a label and the closest curve, from 0 to enough of them."""
    inward = -1 if side == "end" else 1
    heights: list[float] = []
    for each in series:
        drawn = [(x.percent(at), vertical(y, value)) for at, value in each.points]
        across = np.array([end + inward * part for part in range(2, _LABEL_WIDTH)])
        inside = across[(across >= drawn[0][0]) & (across <= drawn[-1][0])]
        heights += np.interp(inside, [at for at, _ in drawn], [height for _, height in drawn]).tolist()
    middle = top - _LINE / 4
    distances = [abs(height - middle) - _LINE / 2 for height in heights]
    return min(_ENOUGH, max(0.0, min(distances, default=_ENOUGH)))
