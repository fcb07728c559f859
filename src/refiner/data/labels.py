"""Labels as a file has them, checked before anything is made of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refiner.errors import DataError

# A model has a row for every label up to the highest: one that is no class must not fill the memory.
_HIGHEST = 32_767


def checked_labels(found: NDArray[Any], count: int, where: str) -> NDArray[np.int64]:
    """The labels of `count` images as int64 [count]; `where` stands in the errors.

    >>> checked_labels(np.array([[0], [2]], np.uint8), 2, "a.npz")
    array([0, 2])
    >>> checked_labels(np.array([0, 10**12]), 2, "a.npz")
    Traceback (most recent call last):
    refiner.errors.DataError: a.npz: labels = 1000000000000: expected integers in [0, 32767]
    """
    if found.dtype.kind not in "iu" or found.size != count:
        raise DataError(
            f"{where}: labels are {found.dtype} {list(found.shape)}, expected {count} integers ≥ 0"
        )
    for value in (int(found.min()), int(found.max())) if count else ():
        if not 0 <= value <= _HIGHEST:
            raise DataError(f"{where}: labels = {value}: expected integers in [0, {_HIGHEST}]")
    return found.reshape(-1).astype(np.int64)
