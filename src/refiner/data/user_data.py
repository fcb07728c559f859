"""A user's own data, read where they lie: `folder:PATH`, `npz:PATH`, `parquet:PATH`."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from refiner.data.classes import class_names, folder_classes
from refiner.data.decode import load_arrays
from refiner.data.image_dataset import Data
from refiner.data.images import image_files, stacked
from refiner.data.labels import checked_labels
from refiner.data.parquet import read_parquet
from refiner.data.readers.pixels import in_blocks, pixels_of, scaled
from refiner.data.splits import ALL, SPLITS, chosen_split
from refiner.errors import DataError


def open_folder(
    path: Path, split: str | None = None, size: int | None = None, classes: Sequence[str] | None = None
) -> Data:
    """Images in class folders; with folders such as `train` and `test` around them, one of these.

    A class has one number in all splits: its place among the names in any of them, or in `classes`.

    >>> open_folder(Path("absent"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent: no such folder
    """
    if not path.is_dir():
        raise DataError(f"{path}: no such folder")
    inside = class_names(path)
    # Only where there is nothing else: a class may be called train.
    inner = [name for name in SPLITS if name in inside] if set(inside) <= set(SPLITS) else []
    chosen = chosen_split(split, inner)
    folder = path if chosen == ALL else path / chosen
    files = image_files(folder)
    every = class_names(*(path / name for name in inner)) if inner else inside
    told = folder_classes(folder, files, every if classes is None else classes)
    if told is None:
        folders = "two or more folders" if classes is None else "folders"
        raise DataError(f"{folder}: no classes, expected its images in {folders}, one a class")
    names, labels = told
    blocks = list(in_blocks(map(str, files), lambda name: pixels_of(folder / name, str(folder / name), size)))
    return Data(torch.from_numpy(np.concatenate(blocks)), labels, len(names), f"folder:{path}", chosen, names)


def open_npz(path: Path, split: str | None = None, size: int | None = None) -> Data:
    """`images` or `x` and `labels` or `y` of an `.npz`, or `train_images` and `train_labels` and so on.

    Images are [N, H, W] or [N, H, W, C], uint8 or floats in 0..1, which are rounded.

    >>> open_npz(Path("absent.npz"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent.npz: no such file
    """
    arrays = load_arrays(path)
    chosen = chosen_split(split, [name for name in SPLITS if f"{name}_images" in arrays])
    prefix = "" if chosen == ALL else f"{chosen}_"
    images = stacked(arrays, path, [f"{prefix}{name}" for name in ("images", "x")])
    found = next((arrays[key] for name in ("labels", "label", "y") if (key := prefix + name) in arrays), None)
    if found is None:
        raise DataError(f"{path}: no labels, expected an array '{prefix}labels' or '{prefix}y'")
    return _data(_pixels(images), found, f"npz:{path}", chosen, size)


def open_parquet(path: Path, split: str | None = None, size: int | None = None) -> Data:
    """Encoded images and labels of a `.parquet` file, or of a folder of `train-….parquet` and so on.

    Files whose names begin with no split are all meant.

    >>> open_parquet(Path("absent.parquet"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent.parquet: no such file
    """
    held = {path: ""}
    if path.is_dir():
        held = {file: re.split("[-._]", file.name)[0] for file in sorted(path.glob("*.parquet"))}
        if not held:
            raise DataError(f"{path}: no .parquet files")
    inner = list(dict.fromkeys(held.values())) if set(SPLITS) & set(held.values()) else []
    chosen = chosen_split(split, inner)
    files = [file for file, own in held.items() if chosen in (ALL, own)]
    images, labels, names = read_parquet(files, size)
    return _data(images, labels, f"parquet:{path}", chosen, None, names)


OPENERS: dict[str, Callable[..., Data]] = {
    "folder": open_folder,
    "npz": open_npz,
    "parquet": open_parquet,
}
"""Each by what stands before the colon."""


def _pixels(images: NDArray[Any]) -> NDArray[np.uint8]:
    """[N, H, W, C] as uint8 [N, 3, H, W]."""
    whole = images if images.dtype == np.uint8 else np.rint(images * 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(whole, (*whole.shape[:3], 3)).transpose(0, 3, 1, 2))


def _data(
    images: NDArray[np.uint8],
    found: NDArray[Any],
    name: str,
    split: str,
    size: int | None,
    names: tuple[str, ...] = (),
) -> Data:
    labels = checked_labels(found, len(images), name)
    pixels = torch.from_numpy(images)
    if size is not None and images.shape[2:] != (size, size):
        pixels = torch.from_numpy(np.stack([scaled(image, size) for image in images]))
    classes = len(names) or max(2, int(labels.max(initial=0)) + 1)
    return Data(pixels, torch.from_numpy(labels), classes, name, split, names)
