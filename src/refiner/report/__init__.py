"""Reports: one self-contained HTML page built from plain records, without torch."""

from refiner.report.code_block import CodeBlock
from refiner.report.comparison import Comparison, ImageRow
from refiner.report.curves import Curves, CurveSeries
from refiner.report.distribution import Distribution, ReferenceLine, Strip
from refiner.report.gallery import Card, CardGroup, Gallery
from refiner.report.grid import Grid, GridColumn, GridImage
from refiner.report.inline_image import InlineImage, to_pixels
from refiner.report.page import Page, Section, render_page, write_page
from refiner.report.roc_plot import RocPlot, RocSeries
from refiner.report.scatter import Dot, Scatter
from refiner.report.settings_table import SettingsTable
from refiner.report.table import Cell, Table
from refiner.report.verdict import VERDICTS, Verdict

__all__ = [
    "VERDICTS",
    "Card",
    "CardGroup",
    "Cell",
    "CodeBlock",
    "Comparison",
    "CurveSeries",
    "Curves",
    "Distribution",
    "Dot",
    "Gallery",
    "Grid",
    "GridColumn",
    "GridImage",
    "ImageRow",
    "InlineImage",
    "Page",
    "ReferenceLine",
    "RocPlot",
    "RocSeries",
    "Scatter",
    "Section",
    "SettingsTable",
    "Strip",
    "Table",
    "Verdict",
    "render_page",
    "to_pixels",
    "write_page",
]
