"""A drawing of boxes, lines and words, as SVG or as PNG."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

from PIL import Image, ImageDraw, ImageFont

_SHIFT = {"start": 0.0, "middle": 0.5, "end": 1.0}
_SHARP = 2  # pixels of a PNG for one of the drawing


@dataclass(frozen=True)
class Box:
    """A filled box; `told` is what it says when pointed at."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    told: str = ""


@dataclass(frozen=True)
class Line:
    """A thin line."""

    x1: float
    y1: float
    x2: float
    y2: float
    stroke: str


@dataclass(frozen=True)
class Words:
    """A line of text; `y` is its base line."""

    x: float
    y: float
    text: str
    fill: str
    size: int = 12
    anchor: Literal["start", "middle", "end"] = "start"


@dataclass(frozen=True)
class Drawing:
    """Shapes on white, the first at the bottom.

    >>> Drawing(20, 10, "a box", [Box(0, 0, 20, 10, "#4e79a7", "all of it")]).svg().count("<rect")
    2
    """

    width: int
    height: int
    title: str
    shapes: Sequence[Box | Line | Words]

    def svg(self) -> str:
        """As one SVG element that needs nothing else."""
        inside = "\n".join(map(_svg, self.shapes))
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img" '
            'font-family="system-ui, -apple-system, Segoe UI, Roboto, Helvetica, Arial, sans-serif">\n'
            f"<title>{escape(self.title)}</title>\n"
            f'<rect width="{self.width}" height="{self.height}" fill="#ffffff"/>\n{inside}\n</svg>\n'
        )

    def png(self) -> bytes:
        """As a PNG of twice the size."""
        image = Image.new("RGB", (self.width * _SHARP, self.height * _SHARP), "#ffffff")
        pen = ImageDraw.Draw(image)
        for shape in self.shapes:
            if isinstance(shape, Box):
                # Pillow draws the last pixel too; a box of no width is none.
                right, bottom = shape.x + shape.width, shape.y + shape.height
                left, top, right, bottom = (round(v * _SHARP) for v in (shape.x, shape.y, right, bottom))
                if right > left and bottom > top:
                    pen.rectangle((left, top, right - 1, bottom - 1), fill=shape.fill)
            elif isinstance(shape, Line):
                ends = [round(v * _SHARP) for v in (shape.x1, shape.y1, shape.x2, shape.y2)]
                pen.line(ends, fill=shape.stroke, width=_SHARP)
            else:
                font = ImageFont.load_default(shape.size * _SHARP)
                start = shape.x * _SHARP - _SHIFT[shape.anchor] * pen.textlength(shape.text, font)
                pen.text((start, shape.y * _SHARP), shape.text, fill=shape.fill, font=font, anchor="ls")
        stream = io.BytesIO()
        image.save(stream, "PNG", optimize=True)
        return stream.getvalue()


def _svg(shape: Box | Line | Words) -> str:
    if isinstance(shape, Box):
        told = f"<title>{escape(shape.told)}</title>" if shape.told else ""
        return (
            f'<rect x="{shape.x:.2f}" y="{shape.y:.2f}" width="{shape.width:.2f}" '
            f'height="{shape.height:.2f}" fill="{shape.fill}">{told}</rect>'
        )
    if isinstance(shape, Line):
        return (
            f'<line x1="{shape.x1:.2f}" y1="{shape.y1:.2f}" x2="{shape.x2:.2f}" y2="{shape.y2:.2f}" '
            f'stroke="{shape.stroke}"/>'
        )
    return (
        f'<text x="{shape.x:.2f}" y="{shape.y:.2f}" fill="{shape.fill}" font-size="{shape.size}" '
        f'text-anchor="{shape.anchor}">{escape(shape.text)}</text>'
    )
