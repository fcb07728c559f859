"""Reports: one self-contained HTML page from plain records."""

from refiner.report.page import Gallery, GalleryRow, Page, Picture, Table, render_page, write_page

__all__ = ["Gallery", "GalleryRow", "Page", "Picture", "Table", "render_page", "write_page"]
