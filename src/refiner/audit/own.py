"""A user's own images as victims: their labels, and what each is called."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from refiner import checks
from refiner.data import folder_classes, read_folder, read_images
from refiner.data.decode import load_arrays
from refiner.data.labels import checked_labels

# Where nothing tells the labels.
_CLASSES = 10


class Images(NamedTuple):
    """Images `[N, C, H, W]` in 0..1, a label and a name of each, how many classes, and their source."""

    images: Tensor
    labels: Tensor
    names: Sequence[str]
    classes: int
    source: str


def own_images(path: Path, size: int | None = None, seed: int = 0) -> Images:
    """The images of a file, a folder or an `.npz`; labels that nothing tells are drawn by `seed`.

    Where the sub-folders of a folder name the classes, these take turns, so that every prefix is balanced.

    >>> own_images(Path("absent"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent: no such file or folder
    """
    if path.is_dir():
        images, files = read_folder(path, size)
        names = [file.as_posix() for file in files]
        if (told := folder_classes(path, files)) is None:
            return _drawn(images, names, path, seed)
        classes, labels = told
        order = _turns(labels.tolist())
        names = [names[i] for i in order]
        return Images(images[order], labels[order], names, len(classes), f"{path.name}, labels by sub-folder")
    images = read_images(path, size=size)
    if path.suffix.lower() != ".npz":
        return _drawn(images, [path.name], path, seed)
    names = [f"image {number}" for number in range(1, len(images) + 1)]
    arrays = load_arrays(path)
    found = next((arrays[key] for key in ("labels", "y") if key in arrays), None)
    if found is None:
        return _drawn(images, names, path, seed)
    labels = torch.from_numpy(checked_labels(found, len(images), str(path)))
    return Images(images, labels, names, max(2, int(labels.max()) + 1), path.name)


def _drawn(images: Tensor, names: Sequence[str], path: Path, seed: int) -> Images:
    # Without labels any will do for a gradient; drawn ones are not guessed by always saying the same.
    draws = torch.Generator().manual_seed(checks.integer("seed", seed, 0, 2**32 - 1))
    labels = torch.randint(_CLASSES, (len(images),), generator=draws)
    return Images(images, labels, names, _CLASSES, f"{path.name}, with drawn labels")


def _turns(labels: Sequence[int]) -> list[int]:
    """An order in which the labels take turns."""
    seen: Counter[int] = Counter()
    places = []
    for label in labels:
        places.append((seen[label], label))
        seen[label] += 1
    return sorted(range(len(labels)), key=places.__getitem__)
