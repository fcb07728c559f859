"""A plot of ROC curves on logarithmic axes, with a band around the main one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from refiner.errors import DataError
from refiner.report.markup import paragraph
from refiner.report.plot import HEIGHT, NamesAt, plot, vertical
from refiner.report.scale import LogScale

# Rates below a thousandth say nothing with the numbers of candidates that audits have.
_LOWEST = 1e-3
_MOST_POINTS = 150
_CHANCE = "chance"


@dataclass(frozen=True)
class RocSeries:
    """One ROC curve.

    Args:
        name: Its label.
        points: Rising false-positive rates, true-positive rates, and both ends of the latter's interval.

    Raises:
        DataError: if there are no points, or a number is not in 0..1.
    """

    name: str
    points: Sequence[tuple[float, float, float, float]]

    def __post_init__(self) -> None:
        if not self.points or not all(0 <= value <= 1 for point in self.points for value in point):
            problem = "not in 0..1" if self.points else "no points"
            raise DataError(f"curve '{self.name}': {problem}, expected rates", field="points")


@dataclass(frozen=True)
class RocPlot:
    """A figure of ROC curves: low false-positive rates, which count most, take as much room as high ones.

    Args:
        title: Heading of the section.
        series: The curves; the first has its band, the others are dashed.
        note: Text below the heading; may be empty.

    >>> RocPlot("Members", [RocSeries("none", [(0.0, 0.2, 0.1, 0.3), (1.0, 1.0, 0.9, 1.0)])]).title
    'Members'
    """

    caption_label: ClassVar[str] = "Figure"
    title: str
    series: Sequence[RocSeries]
    note: str = ""

    def html(self, anchor: str) -> str:
        """Return the plot, with a name for every kind of line in its note."""
        scale = LogScale.over_positive(_LOWEST, 1.0)
        marks = _band(self.series[0], scale) if self.series else ""
        chance = RocSeries(_CHANCE, [(rate, rate, rate, rate) for rate in (_LOWEST, 1.0)])
        marks += _line(chance, scale, " chance")
        for number, series in enumerate(self.series):
            marks += _line(series, scale, " other" if number else "")
        names = [f"Solid: {series.name}{_band_name(series)}" for series in self.series[:1]]
        names += [f"dashed: {series.name}" for series in self.series[1:]]
        legend = f"{'; '.join([*names, f'dotted: {_CHANCE}'])}."
        return paragraph(f"{self.note} {legend}".strip(), "note") + plot(
            scale,
            scale,
            marks,
            anchor=f"{anchor}-plot",
            name=self.title,
            description="; ".join(map(_description, self.series)),
            x_title="false-positive rate",
            y_title="true-positive rate",
            names_at=NamesAt(),
        )


def _band_name(series: RocSeries) -> str:
    has_width = any(low < high for _, _, low, high in series.points)
    return ", with its 95 % interval" if has_width else ""


def _description(series: RocSeries) -> str:
    found = [f"{_rate_at(series, fpr):.3g} at {fpr:g}" for fpr in (0.01, 0.1)]
    return f"{series.name}: true-positive rate {', '.join(found)}"


def _rate_at(series: RocSeries, fpr: float) -> float:
    return max((point[1] for point in series.points if point[0] <= fpr), default=0.0)


def _thinned(series: RocSeries) -> list[tuple[float, float, float, float]]:
    """At most one point for each step of the horizontal axis: the last, which has the highest rate."""
    kept: dict[int, tuple[float, float, float, float]] = {}
    for point in series.points:
        share = math.log(max(point[0], _LOWEST) / _LOWEST) / math.log(1 / _LOWEST)
        kept[round(_MOST_POINTS * share)] = point
    return list(kept.values())


def _line(series: RocSeries, scale: LogScale, style: str) -> str:
    points = " ".join(f"{scale.percent(x)},{vertical(scale, y)}" for x, y, _, _ in _thinned(series))
    return _stretched(f'<polyline class="curve{style}" points="{points}"/>')


def _band(series: RocSeries, scale: LogScale) -> str:
    points = _thinned(series)
    upper = [f"{scale.percent(point[0])},{vertical(scale, point[3])}" for point in points]
    lower = [f"{scale.percent(point[0])},{vertical(scale, point[2])}" for point in reversed(points)]
    return _stretched(f'<polygon class="band" points="{" ".join([*upper, *lower])}"/>')


def _stretched(mark: str) -> str:
    """A mark in per cent of the width and in pixels of the height."""
    return (
        f'<svg width="100%" height="{HEIGHT}" viewBox="0 0 100 {HEIGHT}" preserveAspectRatio="none" '
        f'overflow="visible">{mark}</svg>'
    )
