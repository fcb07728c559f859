"""An array of a message, parsed without trust in the party that sent it."""

from typing import Any

import numpy as np
from flwr.app import Array
from numpy.typing import NDArray

from refiner.errors import DataError

# Bytes that the header of NumPy's format may add to an array's data.
_NUMPY_HEADER = 4096


def read_array(name: str, array: Array, dtype: str, max_values: int, expected: str) -> NDArray[Any]:
    """The values of an array that another party sent.

    Args:
        name: Name of the array, for errors.
        array: The array.
        dtype: The only dtype that is accepted.
        max_values: The largest number of values. A longer array is rejected before its bytes are parsed.
        expected: What is expected, for errors.

    Raises:
        DataError: The array is of another dtype, too long, or not an array at all.

    >>> read_array("w", Array(np.zeros(3, np.float32)), "float32", 3, "float32 [3]").shape
    (3,)
    >>> read_array("w", Array(np.zeros(3)), "float32", 3, "float32 [3]")
    Traceback (most recent call last):
    refiner.errors.DataError: w: 'float64' of 152 bytes, expected float32 [3]
    """
    description = f"{quote(array.dtype)} of {len(array.data)} bytes"
    if array.dtype != dtype or len(array.data) > max_values * np.dtype(dtype).itemsize + _NUMPY_HEADER:
        raise wrong_array(name, description, expected)
    try:
        values = array.numpy()
    except Exception as failure:  # the bytes come from another party and may be anything
        raise DataError(f"{name}: unreadable", field=name, value=description, expected=expected) from failure
    # NumPy reads archives too, and returns something else than an array.
    if not isinstance(values, np.ndarray):
        raise wrong_array(name, "not an array", expected)
    if str(values.dtype) != dtype:
        raise wrong_array(name, f"{values.dtype} {list(values.shape)}", expected)
    return values


def wrong_array(name: str, description: str, expected: str) -> DataError:
    """The error for an array that is not the expected one."""
    return DataError(
        f"{name}: {description}, expected {expected}", field=name, value=description, expected=expected
    )


def quote(text: str) -> str:
    """Another party's text, quoted and shortened for an error message."""
    return repr(text if len(text) <= 60 else text[:57] + "...")
