"""Validation of labels as files hold them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from refiner.errors import DataError

# A model has one output for every label up to the highest: a wrong value must not fill the memory.
_MAX_LABEL = 32_767


def validate_labels(labels: NDArray[Any], count: int, name: str) -> NDArray[np.int64]:
    """The labels of `count` images as int64 [count]; raises if they are not. `name` is the file, for errors.

    >>> validate_labels(np.array([[0], [2]], np.uint8), 2, "a.npz")
    array([0, 2])
    >>> validate_labels(np.array([0, 10**12]), 2, "a.npz")
    Traceback (most recent call last):
    refiner.errors.DataError: a.npz: labels = 1000000000000: expected integers in [0, 32767]
    """
    if labels.dtype.kind not in "iu" or labels.size != count:
        raise DataError(
            f"{name}: labels are {labels.dtype} {list(labels.shape)}, expected {count} integers ≥ 0",
            field="labels",
            value=labels,
            expected=f"{count} integers ≥ 0",
        )
    for value in (int(labels.min()), int(labels.max())) if count else ():
        if not 0 <= value <= _MAX_LABEL:
            expected = f"integers in [0, {_MAX_LABEL}]"
            raise DataError(
                f"{name}: labels = {value}: expected {expected}",
                field="labels",
                value=value,
                expected=expected,
            )
    return labels.reshape(-1).astype(np.int64)
