"""What all commands share: console, device option, progress bar and one-line errors."""

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Task as Line
from rich.text import Text
from typer.core import TyperGroup

from refiner.attacks import ATTACKS
from refiner.cli.option_errors import command_message
from refiner.defenses import DEFENSES
from refiner.errors import DataError, RefinerError
from refiner.models import MODELS
from refiner.registry import Registry, one_line

console = Console()
# Click's usage error, found through typer, which bundles its own copy of click from version 0.26 on.
_UsageError: Any = typer.BadParameter.__base__

Size = Annotated[
    int | None,
    typer.Option(help="Resize images to this many pixels: the shorter side, then a centre crop.", min=1),
]
DATA_HELP = (
    "sample, a dataset of `refiner data list`, or the path of your own: a folder of images (sub-folders are "
    "classes), an .npz, a .parquet, or a folder from save_to_disk of Hugging Face datasets; or with its "
    "kind: folder:PATH, npz:PATH, parquet:PATH, arrow:PATH."
)
Device = Annotated[str, typer.Option(help="Device to compute on: cpu or cuda.")]


def select_device(name: str) -> torch.device:
    """Return the device of that name; raise `DataError` if it is not available."""
    if name not in ("cpu", "cuda"):
        raise DataError(field="device", value=name, expected="cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise DataError(field="device", value="cuda", problem="no CUDA device is available; use cpu")
    return torch.device(name)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """Return a progress bar on stderr that disappears when it is done."""
    if not columns:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    stderr = Console(stderr=True)
    return Progress(
        *columns,
        console=stderr,
        transient=True,
        # In a file it would draw nothing but leave an empty line before an error.
        disable=not stderr.is_terminal,
        # A step may take minutes, and a rate needs two steps.
        speed_estimate_period=600,
    )


class Rate(ProgressColumn):
    """A progress column that shows the number of units per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Line) -> Text:
        """Return the column's text."""
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text("")
        return Text(f"{speed:,.0f} {self.unit}/s" if speed >= 10 else f"{speed:.2g} {self.unit}/s")


@contextmanager
def one_line_errors(command: typer.Context) -> Iterator[None]:
    """Turn errors of the library and of plug-ins into one line and exit code 2, and warnings into one line.

    Any other error is a bug of the library and keeps its traceback.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_, **__: _print_line(f"warning: {message}")
        try:
            yield
        except RefinerError as error:
            _print_line(command_message(error, command))
            raise typer.Exit(2) from None
        except Exception as error:  # third-party code may raise anything
            message = _plugin_message(error)
            if message is None and isinstance(error, OSError):
                message = f"{error.filename or 'system'}: {error.strerror or error}"
            if message is None:
                raise
            _print_line(message)
            raise typer.Exit(2) from None


def _plugin_message(error: Exception) -> str | None:
    """The line for an error that was raised in the code of a plug-in; None for any other."""
    registries: dict[str, Registry[Any]] = {"defense": DEFENSES, "attack": ATTACKS, "model": MODELS}
    for kind, registry in registries.items():
        name = registry.find_plugin(error)
        if name is not None:
            return f"{kind} = {name!r}: this plug-in failed ({one_line(error)})"
    return None


class OneLineGroup(TyperGroup):
    """A group of commands whose usage errors are one line on stderr, with exit code 2."""

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Parse the options of the group itself."""
        with _one_line_usage():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Parse the options of a command and run it."""
        with _one_line_usage(ctx):
            return super().invoke(ctx)


@contextmanager
def _one_line_usage(group: Any = None) -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        path, context = [], error.ctx or group
        if error.ctx is None and group is not None:
            path.append(group.invoked_subcommand or "")
        while context is not None and context.parent is not None:
            path.append(context.info_name)
            context = context.parent
        message = " ".join(error.format_message().split()).rstrip(".")
        # Typer repeats the suggestion of click.
        message = re.sub(r"( Did you mean [^?]*\?)\1$", r"\1", message)
        help_command = " ".join(["refiner", *filter(None, reversed(path)), "--help"])
        _print_line(f"{message[:1].lower()}{message[1:]} (see {help_command})")
        raise typer.Exit(2) from None


def _print_line(text: str) -> None:
    # File names and other machines' texts may contain characters that control a terminal.
    line = "".join(letter if letter.isprintable() else "?" for letter in " ".join(text.splitlines()))
    print(f"refiner: {line}", file=sys.stderr)
