"""The bundled sample: 200 CIFAR-10 images, so that everything can be tried without a download."""

import json
from dataclasses import dataclass
from importlib.resources import as_file, files

import torch
from torch import Tensor

from refiner.data.image_grid import read_image_grid


@dataclass(frozen=True, eq=False)
class Sample:
    """The bundled images with their labels and their origin."""

    images: Tensor
    """float32 [200, 3, 32, 32] in 0..1"""
    labels: Tensor
    """int64 [200]"""
    class_names: tuple[str, ...]
    indices: tuple[int, ...]
    """The index of each image in CIFAR-10's training set; all are ≥ 40,000, the range of the victims."""
    source: str


def load_sample() -> Sample:
    """The bundled CIFAR-10 images, 20 of each class.

    Returns:
        The sample. The classes alternate, so that the first 10, 20, … images are balanced.

    >>> sample = load_sample()
    >>> sample.images.shape, sample.labels[:4].tolist(), sample.class_names[:2]
    (torch.Size([200, 3, 32, 32]), [0, 1, 2, 3], ('airplane', 'automobile'))
    """
    assets = files("refiner") / "assets"
    record = json.loads((assets / "sample.json").read_text(encoding="utf-8"))
    with as_file(assets / "sample.png") as file:
        images = read_image_grid(file, len(record["labels"]), size=32, columns=10)
    return Sample(
        images=images.float() / 255,
        labels=torch.tensor(record["labels"], dtype=torch.int64),
        class_names=tuple(record["class_names"]),
        indices=tuple(record["indices"]),
        source=record["source"],
    )
