"""Reports: one self-contained HTML page from plain records."""

from refiner.report.comparison import Comparison, PictureRow
from refiner.report.distribution import Distribution, Reference, Strip
from refiner.report.gallery import Card, Gallery, Group
from refiner.report.page import Page, Part, render_page, write_page
from refiner.report.picture import Picture, to_pixels
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
    "Page",
    "Part",
    "Picture",
    "PictureRow",
    "Reference",
    "Settings",
    "Strip",
    "Table",
    "Verdict",
    "render_page",
    "to_pixels",
    "write_page",
]
