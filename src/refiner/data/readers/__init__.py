"""Readers: one module for each layout in which datasets are distributed."""

from refiner.data.readers.source_split import LayoutReader, SourceSplit

__all__ = ["LayoutReader", "SourceSplit"]
