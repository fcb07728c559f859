"""The bundled images are balanced, small, and identical to the images of CIFAR-10."""

from collections.abc import Callable
from pathlib import Path

import torch

import refiner
from refiner.data import Sample, load_data, load_public_sample, load_sample


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


def test_public_images_are_balanced_and_none_is_a_victim() -> None:
    public = load_public_sample()
    assert public.images.shape == (3000, 3, 32, 32) and public.images.dtype == torch.float32
    assert public.labels.bincount().tolist() == [300] * 10
    assert public.labels[:10].tolist() == list(range(10))
    assert public.class_names == load_sample().class_names and "Krizhevsky" in public.source
    assert len(set(public.indices)) == 3000 and max(public.indices) < 40_000
    everything = torch.cat([public.images, load_sample().images]).flatten(1)
    assert len({image.numpy().tobytes() for image in everything}) == 3200


def test_changing_a_loaded_sample_does_not_change_the_next() -> None:
    load_sample().images.zero_()
    assert load_sample().images.max() == 1


def test_bundled_files_are_small() -> None:
    assets = Path(refiner.__path__[0]) / "assets"
    assert (assets / "sample.png").stat().st_size < 1_000_000
    assert sum(file.stat().st_size for file in assets.iterdir()) <= 20_000_000


def test_bundled_images_equal_those_of_cifar10(data_dir: Callable[[str], Path]) -> None:
    data = load_data("cifar10", "train", root=data_dir("cifar10"))
    cases: list[tuple[Sample, range, int]] = [
        (load_sample(), range(40_000, 50_000), 20),
        (load_public_sample(), range(40_000), 300),
    ]
    for sample, rows, per_class in cases:
        chosen = list(sample.indices)
        assert torch.equal((sample.images * 255).round().to(torch.uint8), data.images[chosen])
        assert torch.equal(sample.labels, data.labels[chosen])
        labels = data.labels[rows.start : rows.stop]
        first = [torch.nonzero(labels == label).flatten()[:per_class] + rows.start for label in range(10)]
        assert sorted(chosen) == sorted(torch.cat(first).tolist())
