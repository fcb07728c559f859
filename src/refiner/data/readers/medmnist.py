"""The sets of MedMNIST: an .npz with images and labels of each split."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from refiner.data.decode import load_arrays
from refiner.data.readers.raw import Raw, Reader, in_pieces
from refiner.errors import DataError

_SPLITS = ("train", "val", "test")


def medmnist(name: str) -> Reader:
    """The reader of `NAME.npz`, or of a part of it, `NAME_….npz`; the file or the folder that holds it.

    >>> medmnist("pathmnist")(Path("absent")) is None
    True
    """

    def read(path: Path) -> Mapping[str, Raw] | None:
        file = path
        if path.is_dir():
            held = sorted(path.glob(f"{name}.npz")) or sorted(path.glob(f"{name}_*.npz"))
            if not held:
                return None
            if len(held) > 1:
                raise DataError(
                    f"{path}: {', '.join(f.name for f in held)}; expected one of them, give its path"
                )
            file = held[0]
        elif path.suffix.lower() != ".npz":
            return None
        return _splits(file)

    return read


def _splits(file: Path) -> Mapping[str, Raw]:
    arrays = load_arrays(file)
    found = {}
    for split in _SPLITS:
        images, labels = arrays.get(f"{split}_images"), arrays.get(f"{split}_labels")
        if images is None and labels is None:
            continue
        if images is None or labels is None:
            raise DataError(f"{file}: {split} has no {'images' if images is None else 'labels'}")
        if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] != 3:
            raise DataError(
                f"{file}: {split}_images is {images.dtype} {list(images.shape)}, expected uint8 [N, H, W, 3]"
            )
        if labels.dtype.kind not in "iu" or labels.size != len(images):
            raise DataError(
                f"{file}: {split}_labels is {labels.dtype} {list(labels.shape)}, "
                f"expected {len(images)} integers"
            )
        pieces = partial(in_pieces, images.transpose(0, 3, 1, 2))
        found[split] = Raw(labels.reshape(-1).astype(np.int64), pieces)
    if not found:
        held = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f"{file}: holds {held}, expected train_images and train_labels, or val_…, test_…")
    return found
