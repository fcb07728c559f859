"""The labels of a partition as a plot: a bar a client, in it a colour a class."""

import colorsys
import math
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from torch import Tensor

from refiner.checks import wrong
from refiner.data.drawing import Box, Drawing, Line, Words
from refiner.errors import DataError
from refiner.files import write_whole

_INK, _MUTED, _RULE = "#1b1d1f", "#5b5e63", "#d8d5cc"
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
_NAMED = 20  # classes; more have no legend that could be read
_WIDTH, _LEFT, _RIGHT = 900, 84, 72
_LETTER = 6.6  # the width of one, about, at 12 pixels
SUFFIXES = (".svg", ".html", ".png")


def check_plot(path: str | os.PathLike[str]) -> Path:
    """The path of a plot, if it ends in what can be written.

    >>> check_plot("labels.jpg")
    Traceback (most recent call last):
    refiner.errors.SettingError: plot = 'labels.jpg': expected a name ending in .svg, .html or .png
    """
    if Path(path).suffix.lower() not in SUFFIXES:
        raise wrong("plot", str(path), "a name ending in .svg, .html or .png")
    return Path(path)


def write_plot(
    path: str | os.PathLike[str], counts: Tensor, class_names: Sequence[str] = (), title: str = "Labels"
) -> Path:
    """Write counts [clients, classes] as stacked bars, to an `.svg`, an `.html` page or a `.png`."""
    target = check_plot(path)
    drawing = draw_labels(counts, class_names, title)
    if target.suffix.lower() == ".png":
        return write_whole(target, drawing.png())
    whole = drawing.svg()
    if target.suffix.lower() == ".html":
        whole = (
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{escape(title)}</title>\n'
            f'<body style="margin: 2rem; background: #fff">\n{whole}</body>\n</html>\n'
        )
    return write_whole(target, whole.encode())


def draw_labels(counts: Tensor, class_names: Sequence[str] = (), title: str = "Labels") -> Drawing:
    """The drawing of counts [clients, classes].

    >>> import torch
    >>> drawing = draw_labels(torch.tensor([[3, 1], [0, 4]]), ("cat", "dog"))
    >>> [box.told for box in drawing.shapes if isinstance(box, Box) and box.told]
    ['client 1, cat: 3 of 4', 'client 1, dog: 1 of 4', 'client 2, dog: 4 of 4']
    """
    if counts.dim() != 2 or not counts.numel() or counts.min() < 0 or not counts.sum():
        raise DataError(f"counts: {list(counts.shape)}, expected [clients, classes] of samples")
    rows: list[list[int]] = counts.tolist()
    clients, classes = counts.shape
    names = list(class_names) or [f"class {number}" for number in range(classes)]
    colours = _colours(classes)
    shapes: list[Box | Line | Words] = [Words(_LEFT, 30, title, _INK, 16)]
    top = 50.0
    if classes <= _NAMED:
        legend, top = _legend(names, colours, top)
        shapes += legend
    else:
        shapes.append(Words(_LEFT, top, f"{classes:,} classes, in their order", _MUTED))
        top += 20
    # Hundreds of clients still fit on a screen, each a line.
    pitch = min(30.0, max(4.0, 720 / clients))
    bar = pitch * 0.74 if pitch > 8 else pitch - 1
    bottom = top + pitch * clients
    step, end = _scale(max(map(sum, rows)))
    width = _WIDTH - _LEFT - _RIGHT
    for tick in range(0, end + 1, step):
        x = _LEFT + width * tick / end
        shapes.append(Line(x, top - 4, x, bottom + 4, _RULE))
        shapes.append(Words(x, bottom + 20, f"{tick:,}", _MUTED, anchor="middle"))
    shapes.append(Words(_LEFT + width / 2, bottom + 42, "samples", _MUTED, anchor="middle"))
    every = math.ceil(16 / pitch)
    for client, row in enumerate(rows):
        y, total, x = top + pitch * client + (pitch - bar) / 2, sum(row), float(_LEFT)
        for label, count in enumerate(row):
            if count:
                told = f"client {client + 1}, {names[label]}: {count:,} of {total:,}"
                shapes.append(Box(x, y, width * count / end, bar, colours[label], told))
                x += width * count / end
        if client % every == 0:
            base = y + bar / 2 + 4
            shapes.append(Words(_LEFT - 10, base, f"client {client + 1}", _INK, anchor="end"))
            if every == 1:
                # On white, so that no line of the grid crosses it.
                shapes.append(Box(x + 5, y, _LETTER * len(f"{total:,}") + 7, bar, "#ffffff"))
                shapes.append(Words(x + 8, base, f"{total:,}", _MUTED))
    return Drawing(_WIDTH, round(bottom) + 56, title, shapes)


def _legend(
    names: Sequence[str], colours: Sequence[str], top: float
) -> tuple[list[Box | Line | Words], float]:
    shapes: list[Box | Line | Words] = []
    x = float(_LEFT)
    for name, colour in zip(names, colours, strict=True):
        length = 18 + _LETTER * len(name) + 18
        if x + length > _WIDTH - 16 and x > _LEFT:
            x, top = float(_LEFT), top + 20
        shapes += [Box(x, top, 12, 12, colour), Words(x + 18, top + 10.5, name, _INK)]
        x += length
    return shapes, top + 30


def _colours(classes: int) -> list[str]:
    if classes <= len(_COLOURS):
        return list(_COLOURS[:classes])
    found = []
    for number in range(classes):
        # Neighbours differ in lightness too.
        red, green, blue = colorsys.hls_to_rgb(number / classes, 0.62 if number % 2 else 0.45, 0.55)
        found.append(f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}")
    return found


def _scale(most: int) -> tuple[int, int]:
    """A round step, and the end of a scale of at most eight of them."""
    power = 10 ** max(0, math.floor(math.log10(max(most, 1) / 8)))
    step = next(power * round_ for round_ in (1, 2, 5, 10) if power * round_ * 8 >= most)
    return step, math.ceil(most / step) * step
