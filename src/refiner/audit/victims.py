"""Whom to audit: the bundled sample, a data set, or images of one's own."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import torch
from torch import Tensor

from refiner import checks
from refiner.audit.own import Images, own_images
from refiner.data import DATASETS, load_dataset, load_sample, open_data
from refiner.data.catalogue import SHORT, SOURCES
from refiner.data.load import held
from refiner.errors import DataError

# Victims of every study are CIFAR-10's training images from here on; nothing is trained on them.
_FIRST_VICTIM = 40_000
# An attacker is tuned on these, or on those behind an audit's victims where they reach further.
_FIRST_TUNED_ON = 41_000
_PUBLIC = 1000


@dataclass(frozen=True, eq=False)
class Victims:
    """Clients' batches `x [V, B, C, H, W]` in 0..1, labels `y [V, B]`, public images of the same kind."""

    x: Tensor
    y: Tensor
    names: Sequence[str]
    """One an image: its file, where it has one of its own."""
    public: Tensor | None
    classes: int
    source: str
    tuning_x: Tensor | None = None
    """Other batches, on which an attacker may be tuned; None if none were asked for."""
    tuning_y: Tensor | None = None


def load_victims(
    data: str | None = None,
    *,
    root: Path | None = None,
    victims: int = 16,
    batch: int = 1,
    size: int | None = None,
    seed: int = 0,
    tuning_victims: int = 0,
) -> Victims:
    """The first victims of the bundled sample, of a data set, or of own images.

    A data set comes from the cache (`refiner data get`), or from the files in `root` if that is given.
    Own images are a file, a folder or an `.npz`; labels are `labels` or `y` of the `.npz`, or the number of
    an image's sub-folder among those of the folder, else they are drawn. An image is called by its file.
    The `tuning_victims` are the next ones; of CIFAR-10 those from training image 41,000 on.

    >>> found = load_victims(victims=2, batch=3)
    >>> found.x.shape, found.names[0], found.y.tolist()
    (torch.Size([2, 3, 3, 32, 32]), 'airplane 1', [[0, 1, 2], [3, 4, 5]])
    """
    count = checks.integer("victims", victims, 1) * checks.integer("batch", batch, 1)
    more = checks.integer("tuning_victims", tuning_victims, 0) * batch
    if root is not None and data not in DATASETS:
        raise DataError(f"root = {str(root)!r}: goes with a data set, one of {', '.join(DATASETS)}")
    named = data in DATASETS or data in SOURCES or data in SHORT
    if size is not None and (data is None or named):
        raise DataError(f"size = {size}: goes with own images only")
    if data is None:
        sample = load_sample()
        titles = [f"{sample.class_names[y]} {n}" for n, y in enumerate(sample.labels.tolist(), start=1)]
        found = Images(sample.images, sample.labels, titles, len(sample.class_names), sample.source)
        rest = None
    elif named:
        found, rest = _from_dataset(data, root, count, more)
    else:
        known = [*SOURCES, *SHORT]
        if not Path(data).exists() and (close := get_close_matches(data, known, 1)):
            raise DataError(f"data = {data!r}: no such file or folder; did you mean {close[0]!r}?")
        found = own_images(Path(data), size, seed)
        rest = found.images[count : count + _PUBLIC]
    if len(found.images) < count:
        raise DataError(
            f"victims × batch = {victims} × {batch}: expected at most {len(found.images)}, "
            f"the images of {found.source}"
        )
    if len(found.images) < count + more:
        raise DataError(
            f"tuning_victims = {tuning_victims}: expected at most {(len(found.images) - count) // batch}, "
            f"what {found.source} has beside the victims"
        )
    x, y = _batches(found, slice(0, count), batch)
    tuned_on = _batches(found, slice(count, count + more), batch) if more else (None, None)
    public = rest if rest is not None and len(rest) else None
    return Victims(x, y, found.names[:count], public, found.classes, found.source, *tuned_on)


def _batches(found: Images, rows: slice, batch: int) -> tuple[Tensor, Tensor]:
    images, labels = found.images[rows], found.labels[rows]
    return images.view(-1, batch, *images.shape[1:]), labels.view(-1, batch)


def _from_dataset(name: str, root: Path | None, count: int, more: int) -> tuple[Images, Tensor]:
    """Victims of a data set and, behind them, those to tune on; and other images of it."""
    splits, classes = _splits(name, root)
    if name == "cifar10":
        images, labels = _split(name, "train", root, None)
        rest = images[:_PUBLIC]
        behind = max(_FIRST_TUNED_ON, _FIRST_VICTIM + count)
        rows = [slice(_FIRST_VICTIM, _FIRST_VICTIM + count), slice(behind, behind + more)]
        images, labels = (torch.cat([t[each] for each in rows]) for t in (images, labels))
    else:
        split = "test" if "test" in splits else splits[0]
        images, labels = _split(name, split, root, count + max(_PUBLIC, more))
        rest = images[count : count + _PUBLIC]
    titles = [f"image {number}" for number in range(1, count + 1)]
    found = images[: count + more].float() / 255, labels[: count + more]
    return Images(*found, titles, classes, name), rest.float() / 255


def _splits(name: str, root: Path | None) -> tuple[list[str], int]:
    """The splits there are, and how many classes."""
    if root is not None:
        return list(DATASETS[name].splits), DATASETS[name].classes
    own, record = held(name)
    return list(record.splits), SOURCES[own].classes


def _split(name: str, split: str, root: Path | None, limit: int | None) -> tuple[Tensor, Tensor]:
    if root is not None:
        return load_dataset(name, split, root, limit=limit)
    data = open_data(name, split)
    return data.images[:limit], data.labels[:limit]
