"""Whom an audit looks at: the right pictures of each data set, and others that are none of them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from refiner.audit import load_victims
from refiner.data import load_sample
from refiner.errors import DataError


def test_victims_of_cifar10_lie_behind_all_training(data_dir: Callable[[str], Path]) -> None:
    found = load_victims("cifar10", root=data_dir("cifar10"), victims=3, batch=2)
    sample = load_sample()
    assert found.x.shape == (3, 2, 3, 32, 32) and found.classes == 10
    # The sample's indices say where in CIFAR-10 its pictures lie.
    place = next((i for i, index in enumerate(sample.indices) if index - 40_000 < 6), None)
    if place is not None:
        own = found.x.flatten(0, 1)[sample.indices[place] - 40_000]
        assert torch.equal(own, sample.images[place])
    assert found.public is not None and len(found.public) == 1000


def test_a_data_set_without_a_training_split(data_dir: Callable[[str], Path]) -> None:
    found = load_victims("path", root=data_dir("path"), victims=4)
    assert found.x.shape == (4, 1, 3, 28, 28) and found.classes == 9
    assert found.public is not None and len(found.public) == 714
    assert not any(torch.equal(a, b) for a in found.x[:, 0] for b in found.public)


def test_labels_that_do_not_fit(tmp_path: Path) -> None:
    import numpy as np

    np.savez(tmp_path / "a.npz", images=np.zeros((2, 8, 8), np.uint8), labels=np.array([0.5, 1.0]))
    with pytest.raises(DataError, match="labels are float64"):
        load_victims(str(tmp_path / "a.npz"), victims=1)
