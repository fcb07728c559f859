"""A user's own data, read where they lie: `folder:PATH`, `npz:PATH`, `parquet:PATH`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from refiner.checks import choice
from refiner.data.classes import folder_classes
from refiner.data.decode import load_arrays
from refiner.data.form import Data
from refiner.data.images import picture_files, stacked
from refiner.data.parquet import read_parquet
from refiner.data.readers.pixels import in_blocks, pixels_of, scaled
from refiner.errors import DataError

_SPLITS = ("train", "val", "test")
ALL = "all"


def open_folder(path: Path, split: str | None = None, size: int | None = None) -> Data:
    """Pictures in class folders; with `train`, `val` or `test` folders around them, one of these.

    >>> open_folder(Path("absent"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent: no such folder
    """
    if not path.is_dir():
        raise DataError(f"{path}: no such folder")
    inside = {inner.name for inner in path.iterdir() if inner.is_dir() and inner.name[0] != "."}
    # Only where there is nothing else: a class may be called train.
    inner = [name for name in _SPLITS if name in inside] if inside <= set(_SPLITS) else []
    chosen, folder = _chosen(split, inner), path
    if chosen != ALL:
        folder = path / chosen
    files = picture_files(folder)
    told = folder_classes(folder, files)
    if told is None:
        raise DataError(f"{folder}: no classes, expected its pictures in two or more folders, one a class")
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
    inner = [name for name in _SPLITS if f"{name}_images" in arrays]
    chosen = _chosen(split, inner)
    prefix = "" if chosen == ALL else f"{chosen}_"
    images = stacked(arrays, path, [f"{prefix}{name}" for name in ("images", "x")])
    found = next((arrays[key] for name in ("labels", "label", "y") if (key := prefix + name) in arrays), None)
    if found is None:
        raise DataError(f"{path}: no labels, expected an array '{prefix}labels' or '{prefix}y'")
    return _data(_pixels(images), found, f"npz:{path}", chosen, size)


def open_parquet(path: Path, split: str | None = None, size: int | None = None) -> Data:
    """Encoded images and labels of a `.parquet` file, or of a folder of `train-….parquet` and so on."""
    files = [path]
    chosen = ALL
    if path.is_dir():
        held = sorted(path.glob("*.parquet"))
        prefixes = list(dict.fromkeys(file.name.partition("-")[0] for file in held if "-" in file.name))
        chosen = _chosen(split, prefixes)
        files = [file for file in held if chosen in (ALL, file.name.partition("-")[0])]
    else:
        _chosen(split, [])
    images, labels, names = read_parquet(files, size)
    return _data(images, labels, f"parquet:{path}", chosen, None, names)


OPENERS: dict[str, Callable[[Path, str | None, int | None], Data]] = {
    "folder": open_folder,
    "npz": open_npz,
    "parquet": open_parquet,
}
"""Each by what stands before the colon."""


def _chosen(split: str | None, inner: list[str]) -> str:
    """The split that is asked for; without one the first of those that are there, or all."""
    if split is None:
        return inner[0] if inner else ALL
    return choice("split", split, inner or [ALL])


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
    if found.dtype.kind not in "iu" or found.size != len(images) or (found.size and found.min() < 0):
        raise DataError(
            f"{name}: labels are {found.dtype} {list(found.shape)}, expected {len(images)} integers ≥ 0"
        )
    labels = found.reshape(-1).astype(np.int64)
    pixels = torch.from_numpy(images)
    if size is not None and images.shape[2:] != (size, size):
        pixels = torch.from_numpy(np.stack([scaled(image, size) for image in images]))
    classes = len(names) or max(2, int(labels.max(initial=0)) + 1)
    return Data(pixels, torch.from_numpy(labels), classes, name, split, names)
