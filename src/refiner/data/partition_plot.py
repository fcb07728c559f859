"""Plots of a partition: one bar for each client, with one colour for each class."""

import colorsys
import io
import os
import re
from collections.abc import Sequence
from html import escape
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from refiner.checks import wrong
from refiner.errors import DataError
from refiner.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = (
    "#4e79a7",
    "#f28e2b",
    "#e15759",
    "#76b7b2",
    "#59a14f",
    "#edc948",
    "#b07aa1",
    "#ff9da7",
    "#9c755f",
    "#bab0ac",
)
_MUTED = "#5b5e63"
_MAX_LEGEND = 20  # classes; a legend of more can't be read
_MAX_LABELLED = 40  # clients whose total is written beside their bar
_SUFFIXES = (".svg", ".html", ".png")
# Text stays text, and the same counts give the same file.
_STYLE: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "refiner", "font.family": "sans-serif"}


def check_plot(path: str | os.PathLike[str]) -> Path:
    """The path of a plot; raises if its suffix is not supported or matplotlib is not installed.

    >>> check_plot("labels.jpg")
    Traceback (most recent call last):
    refiner.errors.SettingError: plot = 'labels.jpg': expected a name ending in .svg, .html or .png
    """
    if Path(path).suffix.lower() not in _SUFFIXES:
        raise wrong("plot", str(path), "a name ending in .svg, .html or .png")
    _require_matplotlib()
    return Path(path)


def write_label_plot(
    path: str | os.PathLike[str], counts: Tensor, class_names: Sequence[str] = (), title: str = "Labels"
) -> Path:
    """Writes a plot of how many samples of each class each client has; needs matplotlib.

    Args:
        path: An `.svg`, `.html` or `.png` file.
        counts: int64 [clients, classes], as `label_counts` returns them.
        class_names: One name for each class; their numbers if left out.
        title: The title of the plot.

    Returns:
        The path of the file.

    Raises:
        SettingError: If the path has another suffix.
        DataError: If matplotlib is not installed, or the counts have another shape.
    """
    target = check_plot(path)
    import matplotlib

    figure = plot_label_counts(counts, class_names, title)
    if target.suffix.lower() == ".png":
        return write_atomically(target, _render(figure, "png"))
    with matplotlib.rc_context(_STYLE):
        svg = _render(figure, "svg").decode()
    if target.suffix.lower() == ".html":
        # Within a page the XML declaration and the document type are not allowed.
        drawing = re.sub(r"^.*?(?=<svg)", "", svg, flags=re.DOTALL)
        svg = (
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
            f'<body style="margin: 2rem; background: #fff">\n{drawing}</body>\n</html>\n'
        )
    return write_atomically(target, svg.encode())


def plot_label_counts(counts: Tensor, class_names: Sequence[str] = (), title: str = "Labels") -> "Figure":
    """A figure with one horizontal bar for each client, stacked by class; see `write_label_plot`."""
    _require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if counts.dim() != 2 or not counts.numel() or counts.min() < 0 or not counts.sum():
        raise DataError(
            f"counts: {list(counts.shape)}, expected [clients, classes] of numbers of samples",
            field="counts",
            value=counts,
            expected="[clients, classes] of numbers of samples",
        )
    clients, classes = counts.shape
    names = list(class_names) or [f"class {number}" for number in range(classes)]
    totals = counts.sum(1).tolist()
    # Hundreds of clients still fit on a screen, with a thin bar each.
    figure = Figure(figsize=(9, 1.6 + min(7.5, 0.3 * clients)), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    colours = _class_colours(classes)
    for client, row in enumerate(counts.tolist(), start=1):
        ends = accumulate(row)
        # One collection for each bar: a patch for each of its classes takes minutes with many classes.
        spans = [(end - count, count) for count, end in zip(row, ends, strict=True)]
        axes.broken_barh(spans, (client - 0.37, 0.74), facecolors=colours)
    if clients <= _MAX_LABELLED:
        for client, total in enumerate(totals, start=1):
            axes.text(total, client, f"  {total:,}", va="center", color=_MUTED)
        axes.set_yticks(range(1, clients + 1))
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(clients + 0.6, 0.4)
    axes.set_xlim(0, max(totals) * 1.08)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.grid(axis="x", color="#d8d5cc")
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set(xlabel="samples", ylabel="client")
    figure.suptitle(title.replace("$", r"\$"), fontsize=12)
    if classes <= _MAX_LEGEND:
        # A $ in a name would start a formula.
        patches = [
            Patch(color=colour, label=name.replace("$", r"\$"))
            for name, colour in zip(names, colours, strict=True)
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=5, frameon=False)
    else:
        axes.set_title(f"{classes:,} classes in the order of their numbers", fontsize=9, color=_MUTED)
    return figure


def _class_colours(classes: int) -> list[str]:
    if classes <= len(_COLOURS):
        return list(_COLOURS[:classes])
    colours = []
    for number in range(classes):
        # Adjacent classes differ in lightness too.
        red, green, blue = colorsys.hls_to_rgb(number / classes, 0.62 if number % 2 else 0.45, 0.55)
        colours.append(f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}")
    return colours


def _render(figure: "Figure", file_format: str) -> bytes:
    stream = io.BytesIO()
    # Without pyplot there is no window system: PNGs are drawn by matplotlib's Agg backend.
    figure.savefig(stream, format=file_format, metadata={"Date": None} if file_format == "svg" else None)
    return stream.getvalue()


def _require_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise DataError(
            "plot: needs matplotlib: pip install 'refiner-fl[plot]'",
            field="plot",
            value=True,
            expected="an installed matplotlib",
        ) from None
