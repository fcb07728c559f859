"""SVHN as its authors distribute it: one .mat file for each split."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from refiner.data.readers.matlab import read_mat
from refiner.data.readers.source_split import SourceSplit, iter_blocks
from refiner.errors import DataError
from refiner.files import file_error

_SPLITS = ("train", "test")


def read_svhn(path: Path) -> Mapping[str, SourceSplit] | None:
    """The splits in `train_32x32.mat` and `test_32x32.mat` of a folder, or in one such file.

    >>> read_svhn(Path("absent")) is None
    True
    """
    if path.is_dir():
        files = {split: path / f"{split}_32x32.mat" for split in _SPLITS}
    elif path.suffix.lower() == ".mat":
        files = {split: path for split in _SPLITS if path.name.startswith(split)}
        if not files:
            raise file_error(
                path,
                f"expected a name that begins with {' or '.join(_SPLITS)}",
                f"a name that begins with {' or '.join(_SPLITS)}",
            )
    else:
        return None
    return {split: _read_split(file) for split, file in files.items() if file.is_file()} or None


def _read_split(file: Path) -> SourceSplit:
    arrays = read_mat(file)
    missing = [key for key in ("X", "y") if key not in arrays]
    if missing:
        raise file_error(file, f"no array '{missing[0]}'", "the arrays 'X' and 'y'")
    pixels, digits = arrays["X"], arrays["y"].reshape(-1)
    if pixels.dtype != np.uint8 or pixels.shape[:3] != (32, 32, 3) or pixels.ndim != 4:
        raise DataError(
            f"{file}: X is {pixels.dtype} {list(pixels.shape)}, expected uint8 [32, 32, 3, N]",
            field="X",
            value=pixels,
            expected="uint8 [32, 32, 3, N]",
        )
    if len(digits) != pixels.shape[3]:
        raise DataError(
            f"{file}: {pixels.shape[3]} images, but {len(digits)} labels",
            field="y",
            value=len(digits),
            expected=f"{pixels.shape[3]} labels",
        )
    # The authors write the digit 0 as 10.
    labels = digits.astype(np.int64)
    return SourceSplit(np.where(labels == 10, 0, labels), lambda: iter_blocks(pixels.transpose(3, 2, 0, 1)))
