"""Datasets that `datasets.Dataset.save_to_disk` of Hugging Face wrote: Arrow files beside `state.json`."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from refiner.data.splits import ALL, choose_split
from refiner.files import file_error

_STATE, _SPLITS = "state.json", "dataset_dict.json"


def is_saved_dataset(folder: Path) -> bool:
    """Whether `folder` has the files of `Dataset.save_to_disk` or `DatasetDict.save_to_disk`.

    >>> is_saved_dataset(Path("absent"))
    False
    """
    return (folder / _STATE).is_file() or (folder / _SPLITS).is_file()


def arrow_files(path: Path, split: str | None = None) -> tuple[list[Path], str]:
    """The Arrow files of a split and the split's name; of a folder without splits all files.

    >>> arrow_files(Path("absent"))
    Traceback (most recent call last):
    refiner.errors.DataError: absent: no such file or folder
    """
    if not path.exists():
        raise file_error(path, "no such file or folder", "an existing file or folder")
    if path.is_file():
        return [path], choose_split(split, [])
    if not is_saved_dataset(path):
        expected = "a folder that save_to_disk wrote"
        raise file_error(path, f"no {_STATE} or {_SPLITS}, expected {expected}", expected)
    splits = _read_list(path / _SPLITS, "splits") if (path / _SPLITS).is_file() else []
    chosen = choose_split(split, splits)
    if chosen == ALL and len(splits) == 1:
        chosen = splits[0]
    folder = path if chosen == ALL else path / chosen
    if chosen == ALL and splits:
        listed = ", ".join(splits)[:80]
        raise file_error(path, f"has the splits {listed}, expected one called train", "a split called train")
    # Only their names: a file lies beside its list.
    names = [Path(name).name for name in _read_list(folder / _STATE, "_data_files", "filename")]
    if not names:
        raise file_error(folder, f"{_STATE} names no files", "at least one Arrow file")
    return [folder / name for name in names], chosen


class ArrowTable:
    """A table of Arrow with those methods of `pyarrow.parquet.ParquetFile` that the reader of images uses."""

    def __init__(self, table: Any) -> None:
        self.table = table
        self.schema_arrow = table.schema

    def read(self, columns: list[str]) -> Any:
        """Some columns as a table."""
        return self.table.select(columns)

    def iter_batches(self, batch_size: int, columns: list[str]) -> Iterator[Any]:
        """Some columns in batches."""
        yield from self.table.select(columns).to_batches(max_chunksize=batch_size)


@contextmanager
def open_arrow(arrow: ModuleType, file: Path) -> Iterator[ArrowTable]:
    """The table in a file of Arrow's streaming format, memory-mapped; its buffers are validated."""
    with arrow.memory_map(str(file), "r") as source, arrow.ipc.open_stream(source) as reader:
        table = reader.read_all()
        # A damaged file could refer to memory beyond its end.
        table.validate(full=True)
        yield ArrowTable(table)


def _read_list(file: Path, key: str, field: str | None = None) -> list[str]:
    """A list of strings in a JSON file, or one field of the objects in a list."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))[key]
        values = [entry if field is None else entry[field] for entry in entries]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise file_error(file, f"can't be read, expected {key!r}", f"a list {key!r}") from error
    if not all(isinstance(value, str) and value not in ("", ".", "..") for value in values):
        raise file_error(file, f"{key!r} has entries that are no names", "names")
    return values
