"""What the commands share for tabular data: which options apply, the table, and its model."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refiner.errors import DataError

if TYPE_CHECKING:
    import torch

    from refiner.core import Task
    from refiner.data.csv_table import CsvTable

Target = Annotated[
    str | None,
    typer.Option(help="Column with the class labels of a table; its other columns are the features."),
]
MODEL = "mlp"


def check_table_options(
    command: typer.Context, allowed: Collection[str], audited: str = "tabular data"
) -> None:
    """Raise a DataError if an option was given that says nothing for tabular data.

    Args:
        command: The command that was run.
        allowed: The parameters that apply.
        audited: What is audited, for the message.

    Raises:
        DataError: Another one was given.
    """
    for name in (parameter.name or "" for parameter in command.command.params):
        if name not in allowed and is_given(command, name):
            problem = f"does not apply to {audited}"
            raise DataError(field=name, value=command.params[name], problem=problem)


def check_no_target(target: str | None) -> None:
    """Raise a DataError if `--target` was given for images."""
    if target is not None:
        raise DataError(field="target", value=target, problem="only a table has one: --data csv:FILE")


def load_table(path: Path, target: str | None, seed: int) -> "CsvTable":
    """Return the table of `--data csv:FILE --target COLUMN`, its rows in a random order."""
    from refiner.data.csv_table import load_csv_table

    if target is None:
        problem = "a table needs --target COLUMN, the column with its class labels"
        raise DataError(field="data", value=str(path), problem=problem)
    return load_csv_table(path, target).shuffled(seed)


def table_task(
    table: "CsvTable",
    model: str | None,
    weights: Path | None,
    classes: int | None,
    device: "torch.device",
) -> "Task":
    """Return the model of rows of features; `mlp` by default.

    Raises:
        DataError: The model is for images, or does not fit the table.
    """
    from refiner.core import Task
    from refiner.models import MODELS, build_model
    from refiner.models.build import check_model_classes

    name = MODEL if model is None else model
    if name in MODELS and name != MODEL:
        expected = f"{MODEL}, or a factory of yours, for rows of features"
        raise DataError(field="model", value=name, expected=expected)
    if classes is not None and classes < table.classes:
        raise DataError(field="classes", value=classes, expected=f"at least {table.classes}")
    network = build_model(name, classes or table.classes, table.x.shape[1:], weights=weights)
    task = Task(network.to(device), example=table.x[:2].to(device))
    check_model_classes(task, table.y, classes)
    return task


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], text: Collection[str], hidden: Collection[str]
) -> None:
    """Print a table on the terminal.

    Args:
        columns: The headings.
        rows: The cells, with a text or an attribute `text`.
        text: Columns that are set flush left.
        hidden: Columns that are left out.
    """
    from rich.box import SIMPLE
    from rich.markup import escape
    from rich.table import Table

    from refiner.cli.common import console

    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), show_edge=False)
    shown = [index for index, name in enumerate(columns) if name not in hidden]
    for index in shown:
        name = columns[index]
        table.add_column(name, justify="left" if name in text else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(getattr(row[index], "text", None) or str(row[index])) for index in shown))
    console.print(table)


def is_given(command: typer.Context, name: str) -> bool:
    """Return whether an option was given."""
    source = command.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
