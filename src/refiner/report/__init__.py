"""Reports: one self-contained HTML page from plain records."""

from refiner.report.comparison import Comparison, ImageRow
from refiner.report.distribution import Distribution, Reference, Strip
from refiner.report.gallery import Card, Gallery, Group
from refiner.report.inline_image import InlineImage, to_pixels
from refiner.report.page import Page, Part, render_page, write_page
from refiner.report.settings import Settings
from refiner.report.table import Cell, Table
from refiner.report.verdict import VERDICTS, Verdict

__all__ = [
    "VERDICTS",
    "Card",
    "Cell",
    "Comparison",
    "Distribution",
    "Gallery",
    "Group",
    "ImageRow",
    "InlineImage",
    "Page",
    "Part",
    "Reference",
    "Settings",
    "Strip",
    "Table",
    "Verdict",
    "render_page",
    "to_pixels",
    "write_page",
]
