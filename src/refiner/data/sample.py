"""Bundled CIFAR-10 images, so that everything can be tried without a download: a sample and public images."""

import json
from dataclasses import dataclass
from importlib.resources import as_file, files

import torch
from torch import Tensor

from refiner.data.image_grid import read_image_grid


@dataclass(frozen=True, eq=False)
class Sample:
    """Bundled images with their labels and their origin."""

    images: Tensor
    """float32 [N, 3, 32, 32] in 0..1"""
    labels: Tensor
    """int64 [N]"""
    class_names: tuple[str, ...]
    indices: tuple[int, ...]
    """The index of each image in CIFAR-10's training set. Those of the sample are ≥ 40,000, the range of the
    victims; those of the public images are below."""
    source: str


def load_sample() -> Sample:
    """The bundled sample of 200 CIFAR-10 images, 20 of each class.

    Returns:
        The sample. The classes alternate, so that the first 10, 20, … images are balanced.

    >>> sample = load_sample()
    >>> sample.images.shape, sample.labels[:4].tolist(), sample.class_names[:2]
    (torch.Size([200, 3, 32, 32]), [0, 1, 2, 3], ('airplane', 'automobile'))
    """
    return _load("sample")


def load_public_sample() -> Sample:
    """The bundled public images, 300 of each class of CIFAR-10: what an attacker may learn from.

    None of them is in the sample or among the images that audits of CIFAR-10 take as victims.

    Returns:
        The images. The classes alternate, so that the first 10, 20, … images are balanced.

    >>> public = load_public_sample()
    >>> public.images.shape, max(public.indices) < min(load_sample().indices)
    (torch.Size([3000, 3, 32, 32]), True)
    """
    return _load("public")


def _load(name: str) -> Sample:
    assets = files("refiner") / "assets"
    record = json.loads((assets / f"{name}.json").read_text(encoding="utf-8"))
    with as_file(assets / f"{name}.png") as file:
        images = read_image_grid(file, len(record["labels"]), size=32, columns=record["columns"])
    return Sample(
        images=images.float() / 255,
        labels=torch.tensor(record["labels"], dtype=torch.int64),
        class_names=tuple(record["class_names"]),
        indices=tuple(record["indices"]),
        source=record["source"],
    )
