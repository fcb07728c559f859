"""The MedMNIST datasets: an `.npz` with the images and labels of each split."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from refiner.data.npz import load_npz
from refiner.data.readers.source_split import LayoutReader, SourceSplit, iter_blocks
from refiner.errors import DataError
from refiner.files import file_error

_SPLITS = ("train", "val", "test")


def medmnist_reader(name: str) -> LayoutReader:
    """A reader of `NAME.npz`, or of a part of the dataset in `NAME_….npz`: the file or its folder.

    >>> medmnist_reader("pathmnist")(Path("absent")) is None
    True
    """

    def read(path: Path) -> Mapping[str, SourceSplit] | None:
        file = path
        if path.is_dir():
            files = sorted(path.glob(f"{name}.npz")) or sorted(path.glob(f"{name}_*.npz"))
            if not files:
                return None
            if len(files) > 1:
                names = ", ".join(file.name for file in files)
                raise file_error(
                    path, f"contains {names}; expected one of them, give its path", "the path of one of them"
                )
            file = files[0]
        elif path.suffix.lower() != ".npz":
            return None
        return _read_splits(file)

    return read


def _read_splits(file: Path) -> Mapping[str, SourceSplit]:
    arrays = load_npz(file)
    splits = {}
    for split in _SPLITS:
        images, labels = arrays.get(f"{split}_images"), arrays.get(f"{split}_labels")
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            raise file_error(
                file,
                f"{split} has no {'images' if images is None else 'labels'}",
                f"{split}_images and {split}_labels",
            )
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
            raise DataError(
                f"{file}: {split}_images is {images.dtype} {list(images.shape)}, expected uint8 [N, H, W, 3]",
                field=f"{split}_images",
                value=images,
                expected="uint8 [N, H, W, 3]",
            )
        if labels.dtype.kind not in "iu" or labels.size != len(images):
            raise DataError(
                f"{file}: {split}_labels is {labels.dtype} {list(labels.shape)}, "
                f"expected {len(images)} integers",
                field=f"{split}_labels",
                value=labels,
                expected=f"{len(images)} integers",
            )
        blocks = partial(iter_blocks, images.transpose(0, 3, 1, 2))
        splits[split] = SourceSplit(labels.reshape(-1).astype(np.int64), blocks)
    if not splits:
        names = ", ".join(sorted(arrays)) or "no arrays"
        raise file_error(
            file,
            f"contains {names}, expected train_images and train_labels, or val_…, test_…",
            "train_images and train_labels, or val_…, test_…",
        )
    return splits
