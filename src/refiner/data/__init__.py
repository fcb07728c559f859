"""Data: a user's images, the bundled sample, and the data sets of the experiments."""

from refiner.data.classes import folder_classes
from refiner.data.datasets import DATASETS, Dataset, load_dataset
from refiner.data.images import load_image, read_folder, read_images
from refiner.data.sample import Sample, load_sample
from refiner.data.sheet import read_sheet, write_sheet

__all__ = [
    "DATASETS",
    "Dataset",
    "Sample",
    "folder_classes",
    "load_dataset",
    "load_image",
    "load_sample",
    "read_folder",
    "read_images",
    "read_sheet",
    "write_sheet",
]
