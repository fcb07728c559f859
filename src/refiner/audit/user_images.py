"""A user's own images as victims: labels from folders or files, and a name for each image."""

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from refiner import checks
from refiner.data import folder_classes, load_data, read_folder, read_images
from refiner.data.data_name import own_path, qualified_name
from refiner.data.labels import validate_labels
from refiner.data.load_images import has_plain_images
from refiner.data.npz import load_npz
from refiner.data.splits import ALL
from refiner.data.user_data import choose_split_folder
from refiner.errors import DataError

# The number of classes of images without labels.
_DEFAULT_CLASSES = 10


class LabelledImages(NamedTuple):
    """Images `[N, C, H, W]` in 0..1 with labels, names, the number of classes, and their source.

    `labelled` is false where there were no labels and random ones stand in.
    """

    images: Tensor
    labels: Tensor
    names: Sequence[str]
    classes: int
    source: str
    labelled: bool = True

    def with_classes(self, classes: int) -> "LabelledImages":
        """The same with another number of classes; raises a DataError if a label is beyond it."""
        checks.integer("classes", classes, 2)
        highest = int(self.labels.max())
        if highest >= classes:
            raise DataError(
                field="classes",
                value=classes,
                expected=f"at least {highest + 1}, as {self.source} has labels",
            )
        return self._replace(classes=classes)


def read_user_images(
    data: str | os.PathLike[str], size: int | None = None, seed: int = 0, classes: int | None = None
) -> LabelledImages:
    """Return the images of a user's own data, named as for `load_data`.

    A single image, a folder and an `.npz` need no labels: missing ones are drawn at random from `seed`, among
    `classes` classes, 10 if it is left out. Of data with splits the images of `train` are returned, or of the
    first split that exists. If the sub-folders of a folder are classes, images of the classes alternate, so
    that the first images are balanced.

    >>> read_user_images(Path("absent"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent: no such file or folder
    """
    name = qualified_name(os.fspath(data))
    kind, path = own_path(name)
    if kind == "folder" and path.is_dir():
        folder, split, all_classes = choose_split_folder(path)
        images, files = read_folder(folder, size)
        names = [file.as_posix() for file in files]
        if (labelling := folder_classes(folder, files, None if split == ALL else all_classes)) is None:
            return _with_random_labels(images, names, path, seed, classes)
        class_names, labels = labelling
        order = _alternating_order(labels.tolist())
        names = [names[i] for i in order]
        source = f"{path.name}, labels by sub-folder"
        return LabelledImages(images[order], labels[order], names, len(class_names), source)
    if kind == "image":
        return _with_random_labels(read_images(path, size=size), [path.name], path, seed, classes)
    if kind != "npz" or not has_plain_images(arrays := load_npz(path)):
        labelled = load_data(name, size=size)
        names = [f"image {number}" for number in range(1, len(labelled) + 1)]
        images = labelled.images.float() / 255
        return LabelledImages(images, labelled.labels, names, labelled.classes, path.name)
    images = read_images(path, size=size)
    names = [f"image {number}" for number in range(1, len(images) + 1)]
    array = next((arrays[key] for key in ("labels", "y") if key in arrays), None)
    if array is None:
        return _with_random_labels(images, names, path, seed, classes)
    labels = torch.from_numpy(validate_labels(array, len(images), str(path)))
    return LabelledImages(images, labels, names, max(2, int(labels.max()) + 1), path.name)


def _with_random_labels(
    images: Tensor, names: Sequence[str], path: Path, seed: int, classes: int | None
) -> LabelledImages:
    # A gradient needs some label; with one constant label an attack would recover it by always guessing it.
    generator = torch.Generator().manual_seed(checks.integer("seed", seed, 0, 2**32 - 1))
    count = _DEFAULT_CLASSES if classes is None else checks.integer("classes", classes, 2)
    labels = torch.randint(count, (len(images),), generator=generator)
    return LabelledImages(images, labels, names, count, f"{path.name}, with random labels", labelled=False)


def _alternating_order(labels: Sequence[int]) -> list[int]:
    """Return an order of the images in which the labels alternate."""
    counts: Counter[int] = Counter()
    keys = []
    for label in labels:
        keys.append((counts[label], label))
        counts[label] += 1
    return sorted(range(len(labels)), key=keys.__getitem__)
