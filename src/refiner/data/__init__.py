"""Data: a user's images, the bundled sample, named data sets, and which client has which of them."""

from refiner.data.cache import cache_folder
from refiner.data.catalogue import SOURCES, Source
from refiner.data.classes import folder_classes
from refiner.data.datasets import DATASETS, Dataset, load_dataset
from refiner.data.fetch import get_data
from refiner.data.image_dataset import Data
from refiner.data.images import load_image, read_folder, read_images
from refiner.data.load import open_data, verify
from refiner.data.partition import dirichlet, iid, label_counts, make_partition
from refiner.data.sample import Sample, load_sample
from refiner.data.sheet import read_sheet, write_sheet

__all__ = [
    "DATASETS",
    "SOURCES",
    "Data",
    "Dataset",
    "Sample",
    "Source",
    "cache_folder",
    "dirichlet",
    "folder_classes",
    "get_data",
    "iid",
    "label_counts",
    "load_dataset",
    "load_image",
    "load_sample",
    "make_partition",
    "open_data",
    "read_folder",
    "read_images",
    "read_sheet",
    "verify",
    "write_sheet",
]
