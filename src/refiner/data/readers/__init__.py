"""Readers: one file a layout in which a data set is handed around."""

from refiner.data.readers.raw import Raw, Reader

__all__ = ["Raw", "Reader"]
