"""Whom to audit: the bundled sample, a data set, or pictures of one's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from refiner import checks
from refiner.data import DATASETS, load_dataset, load_sample, read_images
from refiner.data.decode import load_arrays
from refiner.errors import DataError

# Victims of every study are CIFAR-10's training pictures from here on; nothing is trained or tuned on them.
_FIRST_VICTIM = 40_000
_PUBLIC = 1000
_CLASSES = 10


@dataclass(frozen=True, eq=False)
class Victims:
    """Clients' batches `x [V, B, C, H, W]` in 0..1, labels `y [V, B]`, public pictures of the same kind."""

    x: Tensor
    y: Tensor
    names: Sequence[str]
    public: Tensor | None
    classes: int
    source: str


def load_victims(
    data: str | None = None,
    *,
    root: Path | None = None,
    victims: int = 16,
    batch: int = 1,
    size: int | None = None,
    seed: int = 0,
) -> Victims:
    """The first victims of the bundled sample, of a data set whose files lie in `root`, or of own pictures.

    Own pictures are a file, a folder or an `.npz`; labels are `labels` or `y` of the `.npz`, else drawn.

    >>> found = load_victims(victims=2, batch=3)
    >>> found.x.shape, found.names[0], found.y.tolist()
    (torch.Size([2, 3, 3, 32, 32]), 'airplane 1', [[0, 1, 2], [3, 4, 5]])
    """
    count = checks.integer("victims", victims, 1) * checks.integer("batch", batch, 1)
    if root is not None and data not in DATASETS:
        raise DataError(f"root = {str(root)!r}: goes with a data set, one of {', '.join(DATASETS)}")
    if size is not None and (data is None or data in DATASETS):
        raise DataError(f"size = {size}: goes with own pictures only")
    if data is None:
        sample = load_sample()
        images, labels, source = sample.images, sample.labels, sample.source
        named: Sequence[str] = sample.class_names
        rest, classes = None, len(named)
    elif data in DATASETS:
        if root is None:
            raise DataError(f"data = {data!r}: expected its files' folder too, as root")
        images, labels, rest = _from_dataset(data, root, count)
        source, named, classes = data, (), DATASETS[data].classes
    else:
        images, labels, classes, drawn = _own(Path(data), size, seed)
        rest, named = images[count : count + _PUBLIC], ()
        source = Path(data).name + (", with drawn labels" if drawn else "")
    if len(images) < count:
        raise DataError(
            f"victims × batch = {victims} × {batch}: expected at most {len(images)}, the pictures of {source}"
        )
    images, labels = images[:count], labels[:count]
    titles = [
        f"{named[label] if named else 'picture'} {number}"
        for number, label in enumerate(labels.tolist(), start=1)
    ]
    x, y = images.view(victims, batch, *images.shape[1:]), labels.view(victims, batch)
    return Victims(x, y, titles, rest if rest is not None and len(rest) else None, classes, source)


def _from_dataset(name: str, root: Path, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Victims, their labels, and other pictures of the same data set."""
    if name == "cifar10":
        images, labels = load_dataset(name, "train", root)
        rest = images[:_PUBLIC]
        images, labels = images[_FIRST_VICTIM:], labels[_FIRST_VICTIM:]
    else:
        split = "test" if "test" in DATASETS[name].splits else next(iter(DATASETS[name].splits))
        images, labels = load_dataset(name, split, root, limit=count + _PUBLIC)
        rest = images[count:]
    return images[:count].float() / 255, labels[:count], rest.float() / 255


def _own(path: Path, size: int | None, seed: int) -> tuple[Tensor, Tensor, int, bool]:
    """Pictures, labels, how many classes, and whether the labels are drawn."""
    images = read_images(path, size=size)
    if path.suffix.lower() == ".npz":
        arrays = load_arrays(path)
        found = next((arrays[key] for key in ("labels", "y") if key in arrays), None)
        if found is not None:
            if found.dtype.kind not in "iu" or found.size != len(images) or found.min() < 0:
                raise DataError(
                    f"{path}: labels are {found.dtype} {list(found.shape)}, "
                    f"expected {len(images)} integers ≥ 0"
                )
            labels = torch.from_numpy(found.reshape(-1).astype(np.int64))
            return images, labels, max(2, int(labels.max()) + 1), False
    # Without labels any will do for a gradient; drawn ones are not guessed by always saying the same.
    draws = torch.Generator().manual_seed(checks.integer("seed", seed, 0, 2**32 - 1))
    return images, torch.randint(_CLASSES, (len(images),), generator=draws), _CLASSES, True
