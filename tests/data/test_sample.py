"""The bundled sample is balanced, small, and identical to the images of CIFAR-10."""

from collections.abc import Callable
from pathlib import Path

import torch

import refiner
from refiner.data import load_data, load_sample


def test_shapes_and_balance() -> None:
    sample = load_sample()
    assert sample.images.shape == (200, 3, 32, 32) and sample.images.dtype == torch.float32
    assert sample.images.min() == 0 and sample.images.max() == 1
    assert sample.labels.dtype == torch.int64
    assert sample.labels.bincount().tolist() == [20] * 10
    assert sorted(sample.labels[30:40].tolist()) == list(range(10))
    assert len(sample.class_names) == 10 and sample.class_names[6] == "frog"
    assert "Krizhevsky" in sample.source
    assert len(sample.images.unique(dim=0)) == 200


def test_all_images_are_victims() -> None:
    indices = load_sample().indices
    assert len(set(indices)) == 200
    assert min(indices) >= 40_000 and max(indices) < 50_000


def test_changing_a_loaded_sample_does_not_change_the_next() -> None:
    load_sample().images.zero_()
    assert load_sample().images.max() == 1


def test_sample_file_is_small() -> None:
    assets = Path(refiner.__path__[0]) / "assets"
    assert (assets / "sample.png").stat().st_size < 1_000_000


def test_sample_equals_the_cifar10_images(data_dir: Callable[[str], Path]) -> None:
    data = load_data("cifar10", "train", root=data_dir("cifar10"))
    images, labels = data.images, data.labels
    sample = load_sample()
    chosen = list(sample.indices)
    assert torch.equal((sample.images * 255).round().to(torch.uint8), images[chosen])
    assert torch.equal(sample.labels, labels[chosen])
    first = [
        (40_000 + torch.nonzero(labels[40_000:] == label).flatten()[:20]).tolist() for label in range(10)
    ]
    assert sorted(chosen) == sorted(index for indices in first for index in indices)
