"""Labels as a file has them: which are taken, and in which words others are refused."""

from typing import Any

import numpy as np
import pytest

from refiner.data.labels import checked_labels
from refiner.errors import DataError


def test_integers_of_any_kind_and_shape() -> None:
    for kind in (np.uint8, np.int16, np.uint64):
        found = checked_labels(np.array([[0], [5]], kind), 2, "a.npz")
        assert found.dtype == np.int64 and found.tolist() == [0, 5]
    assert checked_labels(np.array([32_767]), 1, "a.npz").tolist() == [32_767]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (np.array([0.0, 1.0]), "labels are float64 [2], expected 2 integers ≥ 0"),
        (np.array([0, 1, 2]), "labels are int64 [3], expected 2 integers ≥ 0"),
        (np.array([-1, 0]), "labels = -1: expected integers in [0, 32767]"),
        (np.array([0, 10**12]), "labels = 1000000000000: expected integers in [0, 32767]"),
        (np.array([0, 2**64 - 1], np.uint64), f"labels = {2**64 - 1}: expected integers in [0, 32767]"),
    ],
)
def test_what_is_no_label(found: np.ndarray[Any, Any], told: str) -> None:
    with pytest.raises(DataError) as error:
        checked_labels(found, 2, "a.npz")
    assert str(error.value) == f"a.npz: {told}"
