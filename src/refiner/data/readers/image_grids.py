"""Datasets as lossless image grids beside an `.npz` of labels, and Tiny-ImageNet's JPEGs in one `.npz`."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refiner.data.image_decoding import check_offsets
from refiner.data.image_grid import read_image_grid
from refiner.data.npz import load_npz
from refiner.data.readers.image_blocks import read_image_array, stack_in_blocks
from refiner.data.readers.lfw import number_people
from refiner.data.readers.source_split import ImageBlock, LayoutReader, SourceSplit
from refiner.files import file_error

_PER_GRID = 10_000
_TINY_IMAGENET = "tiny_imagenet_val_jpegs.npz"


@dataclass(frozen=True)
class GridFiles:
    """The grids `STEM_0.webp` … of one split, each of 10,000 images, and the array of its labels."""

    stem: str
    count: int
    key: str
    group: str = ""
    """Array of groups by which train and test are separated; see `in_test_split`."""
    people: bool = False
    """Whether the array has LFW's file names, which contain the name of the person."""
    attributes: tuple[str, ...] = ()
    """Arrays of properties besides the label; those that the file lacks are left out."""

    @property
    def names(self) -> tuple[str, ...]:
        """The file names of the grids, in order."""
        return tuple(f"{self.stem}_{number}.webp" for number in range(self.count))


def grid_reader(label_file: str, splits: Mapping[str, GridFiles]) -> LayoutReader:
    """A reader of the splits of which all files are in a folder.

    >>> grid_reader("svhn_labels.npz", {"test": GridFiles("svhn_test", 1, "y_test")})(Path("absent")) is None
    True
    """

    def read(path: Path) -> Mapping[str, SourceSplit] | None:
        complete = {
            split: files
            for split, files in splits.items()
            if all((path / name).is_file() for name in (*files.names, label_file))
        }
        return {
            split: _read_split(path, label_file, split, files) for split, files in complete.items()
        } or None

    return read


def read_tiny_imagenet_npz(path: Path) -> Mapping[str, SourceSplit] | None:
    """Tiny-ImageNet's validation split from one `.npz` of concatenated JPEGs, or the folder with that file.

    >>> read_tiny_imagenet_npz(Path("absent")) is None
    True
    """
    file = path / _TINY_IMAGENET if path.is_dir() else path
    if file.name != _TINY_IMAGENET or not file.is_file():
        return None
    blob, offsets, labels = _arrays(file, "blob", "offsets", "label")
    bounds = check_offsets(blob, offsets, str(file))

    def read_jpeg(title: str) -> ImageBlock:
        index = int(title.rpartition(" ")[2])
        return read_image_array(blob[bounds[index] : bounds[index + 1]].tobytes(), title)

    titles = [f"{file}, image {index}" for index in range(len(bounds) - 1)]
    return {"val": SourceSplit(_integers(labels), lambda: stack_in_blocks(titles, read_jpeg))}


def in_test_split(groups: Sequence[str] | NDArray[Any]) -> NDArray[np.bool_]:
    """Which samples belong to the test split: about a fifth of the groups, chosen by a hash of their name.

    All samples of a group are on the same side.

    >>> in_test_split(["lesion 6", "lesion 7", "lesion 6"]).tolist()
    [False, True, False]
    """
    return np.array([zlib.crc32(str(group).encode()) % 5 == 0 for group in groups])


def _read_split(folder: Path, label_file: str, split: str, files: GridFiles) -> SourceSplit:
    keys = [files.key, files.group] if files.group else [files.key]
    labels, *groups = _arrays(folder / label_file, *keys)
    if files.people:
        labels = np.array(number_people([str(name) for name in labels])[1])
    # The label file may cover more images than there are grids of.
    rows = np.arange(min(len(labels), _PER_GRID * files.count))
    if groups:
        in_test = in_test_split(groups[0])
        rows = np.flatnonzero(in_test if split == "test" else ~in_test)

    def blocks() -> Iterator[ImageBlock]:
        for number, name in enumerate(files.names):
            in_grid = rows[(rows >= number * _PER_GRID) & (rows < (number + 1) * _PER_GRID)] % _PER_GRID
            if len(in_grid):
                yield read_image_grid(folder / name, int(in_grid[-1]) + 1, size=32).numpy()[in_grid]

    attributes = _attributes(folder / label_file, files.attributes, len(labels))
    return SourceSplit(
        _integers(labels)[rows], blocks, {name: values[rows] for name, values in attributes.items()}
    )


def _attributes(file: Path, names: Sequence[str], count: int) -> dict[str, NDArray[np.int64]]:
    """Those of the named arrays that the file has, each with `count` integers from −1, for unknown."""
    arrays = load_npz(file) if names else {}
    found = {name: arrays[name] for name in names if name in arrays}
    for name, values in found.items():
        if values.shape != (count,) or values.dtype.kind not in "iu" or values.min() < -1:
            expected = f"{count} integers ≥ -1, one for every image"
            raise file_error(file, f"array '{name}' has other values, expected {expected}", expected)
    return {name: _integers(values) for name, values in found.items()}


def _arrays(file: Path, *keys: str) -> list[NDArray[Any]]:
    """The named arrays of an `.npz`, none of them empty."""
    arrays = load_npz(file)
    for key in keys:
        if key not in arrays or arrays[key].size == 0:
            raise file_error(file, f"no array '{key}'", f"an array '{key}'")
    return [arrays[key] for key in keys]


def _integers(labels: NDArray[Any]) -> NDArray[np.int64]:
    return np.asarray(labels).reshape(-1).astype(np.int64)
