"""Data: named datasets, the bundled sample, a user's own images, and their partition across clients."""

from refiner.data.attribute_batches import batches_of_mixed_values, batches_of_one_value
from refiner.data.cache_record import cache_folder
from refiner.data.catalogue import DATASETS, DatasetInfo
from refiner.data.classes import folder_classes
from refiner.data.csv_table import CsvTable, load_csv_table
from refiner.data.fetch import fetch_data
from refiner.data.frequent_classes import frequent_classes, limit_per_class
from refiner.data.image_dataset import ImageDataset
from refiner.data.image_grid import read_image_grid, write_image_grid
from refiner.data.images import load_image, read_folder, read_images
from refiner.data.load import available_splits, load_data, verify_data
from refiner.data.load_images import load_images
from refiner.data.partition import dirichlet, iid, label_counts, make_partition
from refiner.data.partition_plot import write_label_plot
from refiner.data.sample import Sample, load_public_sample, load_sample
from refiner.data.train_test_split import hold_out, load_train_and_test

__all__ = [
    "DATASETS",
    "CsvTable",
    "DatasetInfo",
    "ImageDataset",
    "Sample",
    "available_splits",
    "batches_of_mixed_values",
    "batches_of_one_value",
    "cache_folder",
    "dirichlet",
    "fetch_data",
    "folder_classes",
    "frequent_classes",
    "hold_out",
    "iid",
    "label_counts",
    "limit_per_class",
    "load_csv_table",
    "load_data",
    "load_image",
    "load_images",
    "load_public_sample",
    "load_sample",
    "load_train_and_test",
    "make_partition",
    "read_folder",
    "read_image_grid",
    "read_images",
    "verify_data",
    "write_image_grid",
    "write_label_plot",
]
