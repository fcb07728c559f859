"""Which labels are accepted, and the errors of others."""

from typing import Any

import numpy as np
import pytest

from refiner.data.labels import validate_labels
from refiner.errors import DataError


def test_integers_of_any_type_and_shape_are_accepted() -> None:
    for kind in (np.uint8, np.int16, np.uint64):
        labels = validate_labels(np.array([[0], [5]], kind), 2, "a.npz")
        assert labels.dtype == np.int64 and labels.tolist() == [0, 5]
    assert validate_labels(np.array([32_767]), 1, "a.npz").tolist() == [32_767]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([0.0, 1.0]), "labels are float64 [2], expected 2 integers ≥ 0"),
        (np.array([0, 1, 2]), "labels are int64 [3], expected 2 integers ≥ 0"),
        (np.array([-1, 0]), "labels = -1: expected integers in [0, 32767]"),
        (np.array([0, 10**12]), "labels = 1000000000000: expected integers in [0, 32767]"),
        (np.array([0, 2**64 - 1], np.uint64), f"labels = {2**64 - 1}: expected integers in [0, 32767]"),
    ],
)
def test_invalid_labels_raise(labels: np.ndarray[Any, Any], message: str) -> None:
    with pytest.raises(DataError) as error:
        validate_labels(labels, 2, "a.npz")
    assert str(error.value) == f"a.npz: {message}"
