"""A user's own data, read in place: `folder:PATH`, `npz:PATH`, `parquet:PATH`, `arrow:PATH`."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from refiner.data.classes import folder_classes, subfolder_names
from refiner.data.image_dataset import ImageDataset
from refiner.data.images import image_files, images_of_npz
from refiner.data.labels import validate_labels
from refiner.data.npz import load_npz
from refiner.data.parquet import read_parquet
from refiner.data.readers.image_blocks import read_image_array, resize_image, stack_in_blocks
from refiner.data.saved_dataset import arrow_files
from refiner.data.splits import ALL, SPLIT_NAMES, choose_split
from refiner.files import file_error

_LABELS = ("labels", "label", "y")


def load_image_folder(
    path: Path, split: str | None = None, size: int | None = None, classes: Sequence[str] | None = None
) -> ImageDataset:
    """Images in class folders, which may be in folders such as `train` and `test`.

    A class has the same number in all splits: its position in the sorted names of all of them, or in
    `classes`.

    >>> load_image_folder(Path("absent"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent: no such folder
    """
    if not path.is_dir():
        raise file_error(path, "no such folder", "an existing folder")
    folder, chosen, default_classes = choose_split_folder(path, split)
    files = image_files(folder)
    labelled = folder_classes(folder, files, default_classes if classes is None else classes)
    if labelled is None:
        number = "two or more folders" if classes is None else "folders"
        raise file_error(
            folder,
            f"no classes, expected its images in {number}, one for each class",
            f"images in {number}, one for each class",
        )
    names, labels = labelled
    blocks = list(
        stack_in_blocks(
            map(str, files), lambda name: read_image_array(folder / name, str(folder / name), size)
        )
    )
    images = torch.from_numpy(np.concatenate(blocks))
    return ImageDataset(images, labels, len(names), f"folder:{path}", chosen, names)


def choose_split_folder(path: Path, split: str | None = None) -> tuple[Path, str, tuple[str, ...]]:
    """The folder of a split, the split's name, and the classes of all splits.

    >>> choose_split_folder(Path("."))[1]
    'all'
    """
    subfolders = subfolder_names(path)
    # Only if there are no other folders: a class may be called train.
    splits = (
        [name for name in SPLIT_NAMES if name in subfolders] if set(subfolders) <= set(SPLIT_NAMES) else []
    )
    chosen = choose_split(split, splits)
    classes = subfolder_names(*(path / name for name in splits)) if splits else subfolders
    return path if chosen == ALL else path / chosen, chosen, classes


def load_npz_dataset(path: Path, split: str | None = None, size: int | None = None) -> ImageDataset:
    """`images` or `x` and `labels` or `y` of an `.npz`, or `train_images` and `train_labels` and so on.

    Images are [N, H, W] or [N, H, W, C], uint8 or floats in 0..1, which are rounded to 8 bits. Other arrays
    of N integers ≥ 0, or −1 for unknown, are attributes.

    >>> load_npz_dataset(Path("absent.npz"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent.npz: no such file
    """
    arrays = load_npz(path)
    chosen = choose_split(split, [name for name in SPLIT_NAMES if f"{name}_images" in arrays])
    prefix = "" if chosen == ALL else f"{chosen}_"
    images = images_of_npz(arrays, path, [f"{prefix}{name}" for name in ("images", "x")])
    labels = next((arrays[key] for name in _LABELS if (key := prefix + name) in arrays), None)
    if labels is None:
        raise file_error(
            path,
            f"no labels, expected an array '{prefix}labels' or '{prefix}y'",
            f"an array '{prefix}labels' or '{prefix}y'",
        )
    data = _make_dataset(_to_bytes(images), labels, f"npz:{path}", chosen, size)
    others = {
        key.removeprefix(prefix): torch.from_numpy(array.astype(np.int64))
        for key, array in arrays.items()
        if key.startswith(prefix) and array.dtype.kind in "iub" and array.shape == (len(data),)
    }
    attributes = {
        name: values for name, values in others.items() if name not in _LABELS and int(values.min()) >= -1
    }
    return replace(data, attributes=attributes)


def load_parquet_dataset(path: Path, split: str | None = None, size: int | None = None) -> ImageDataset:
    """Encoded images and labels of a `.parquet` file, or of a folder of `train-….parquet` and so on.

    If no file of the folder is named after a split, all files are read.

    >>> load_parquet_dataset(Path("absent.parquet"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent.parquet: no such file
    """
    prefixes = {path: ""}
    if path.is_dir():
        prefixes = {file: re.split("[-._]", file.name)[0] for file in sorted(path.glob("*.parquet"))}
        if not prefixes:
            raise file_error(path, "no .parquet files", "at least one .parquet file")
    splits = list(dict.fromkeys(prefixes.values())) if set(SPLIT_NAMES) & set(prefixes.values()) else []
    chosen = choose_split(split, splits)
    files = [file for file, prefix in prefixes.items() if chosen in (ALL, prefix)]
    images, labels, names = read_parquet(files, size)
    return _make_dataset(images, labels, f"parquet:{path}", chosen, None, names)


def load_arrow_dataset(path: Path, split: str | None = None, size: int | None = None) -> ImageDataset:
    """Encoded images and labels in a folder that `save_to_disk` of Hugging Face `datasets` wrote.

    >>> load_arrow_dataset(Path("absent"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent: no such file or folder
    """
    files, chosen = arrow_files(path, split)
    images, labels, names = read_parquet(files, size)
    return _make_dataset(images, labels, f"arrow:{path}", chosen, None, names)


USER_FORMATS: dict[str, Callable[..., ImageDataset]] = {
    "folder": load_image_folder,
    "npz": load_npz_dataset,
    "parquet": load_parquet_dataset,
    "arrow": load_arrow_dataset,
}
"""The loaders by the part of the name before the colon."""


def _to_bytes(images: NDArray[Any]) -> NDArray[np.uint8]:
    """[N, H, W, C] as uint8 [N, 3, H, W]."""
    pixels = images if images.dtype == np.uint8 else np.rint(images * 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:3], 3)).transpose(0, 3, 1, 2))


def _make_dataset(
    images: NDArray[np.uint8],
    raw_labels: NDArray[Any],
    name: str,
    split: str,
    size: int | None,
    class_names: tuple[str, ...] = (),
) -> ImageDataset:
    labels = validate_labels(raw_labels, len(images), name)
    pixels = torch.from_numpy(images)
    if size is not None and images.shape[2:] != (size, size):
        pixels = torch.from_numpy(np.stack([resize_image(image, size) for image in images]))
    classes = len(class_names) or max(2, int(labels.max(initial=0)) + 1)
    return ImageDataset(pixels, torch.from_numpy(labels), classes, name, split, class_names)
