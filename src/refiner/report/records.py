"""What a page shows, as plain records: text, tables and pictures; nothing here knows a model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from refiner.errors import DataError


@dataclass(frozen=True, eq=False)
class Picture:
    """One image, uint8 [height, width, 3], what it shows in words, and an optional caption."""

    pixels: NDArray[np.uint8]
    alt: str
    caption: str = ""

    def __post_init__(self) -> None:
        pixels = self.pixels
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
            raise DataError(f"pixels: {pixels.dtype} {list(pixels.shape)}, expected uint8 [height, width, 3]")
        if not self.alt.strip():
            raise DataError("alt: empty, expected words for readers who can't see the picture")


@dataclass(frozen=True)
class GalleryRow:
    """Pictures side by side under one label; the n-th of each row stand above each other."""

    label: str
    images: Sequence[Picture]


@dataclass(frozen=True)
class Gallery:
    """Rows of pictures to compare from top to bottom, as raw above robust."""

    title: str
    note: str
    rows: Sequence[GalleryRow]


@dataclass(frozen=True)
class Table:
    """A table of text cells; the first column names the rows."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise DataError(
                    f"table '{self.title}', row {number}: {len(row)} cells, expected {len(self.columns)}"
                )


@dataclass(frozen=True)
class Page:
    """A whole page: a title, a lead of a sentence or two, facts as (name, value), pictures and tables."""

    title: str
    lead: str
    facts: Sequence[tuple[str, str]] = ()
    tables: Sequence[Table] = ()
    galleries: Sequence[Gallery] = ()
