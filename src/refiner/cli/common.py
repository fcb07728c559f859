"""What every command shares: where it prints, its device, its bar, its errors."""

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

from refiner.cli.wording import in_words_of
from refiner.errors import DataError, RefinerError

console = Console()
# Click's, found through typer, which from 0.26 on has a click of its own.
_UsageError: Any = typer.BadParameter.__base__

Size = Annotated[
    int | None, typer.Option(help="Bring images to this side: shorter side, then centre.", min=1)
]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]


def to_device(name: str) -> torch.device:
    """The device of that name, if it is there."""
    if name not in ("cpu", "cuda"):
        raise DataError(f"device = {name!r}: expected cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise DataError("device = 'cuda': no CUDA device is available here; use cpu")
    return torch.device(name)


def progress_bar(*columns: ProgressColumn) -> Progress:
    """A bar on stderr that is gone when it is done."""
    if not columns:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    screen = Console(stderr=True)
    return Progress(
        *columns,
        console=screen,
        transient=True,
        # Into a file it would draw nothing, yet leave an empty line before an error.
        disable=not screen.is_terminal,
        # A step may take minutes, and a rate needs two.
        speed_estimate_period=600,
    )


class Rate(ProgressColumn):
    """How many of something are done in a second."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def render(self, task: Line) -> Text:
        """The column's text."""
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text("")
        return Text(f"{speed:,.0f} {self.what}/s" if speed >= 10 else f"{speed:.2g} {self.what}/s")


@contextmanager
def one_line_errors(command: typer.Context) -> Iterator[None]:
    """A wrong setting or file is a line on stderr and exit code 2, no traceback; a warning is a line too."""
    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.showwarning = lambda message, *_, **__: _say(f"warning: {message}")
        try:
            yield
        except RefinerError as error:
            _say(in_words_of(command, str(error)))
            raise typer.Exit(2) from None


class OneLineGroup(TyperGroup):
    """Commands whose usage errors, too, are a line on stderr and exit code 2."""

    def make_context(self, *args: Any, **settings: Any) -> Any:
        """Parses the options of the group itself."""
        with _one_line_usage():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        """Parses those of a command, and runs it."""
        with _one_line_usage(ctx):
            return super().invoke(ctx)


@contextmanager
def _one_line_usage(group: Any = None) -> Iterator[None]:
    try:
        yield
    except _UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            raise
        words, context = [], error.ctx or group
        if error.ctx is None and group is not None:
            words.append(group.invoked_subcommand or "")
        while context is not None and context.parent is not None:
            words.append(context.info_name)
            context = context.parent
        message = " ".join(error.format_message().split()).rstrip(".")
        # Typer adds to click's guess the same one.
        message = re.sub(r"( Did you mean [^?]*\?)\1$", r"\1", message)
        see = " ".join(["refiner", *filter(None, reversed(words)), "--help"])
        _say(f"{message[:1].lower()}{message[1:]} (see {see})")
        raise typer.Exit(2) from None


def _say(text: str) -> None:
    print(f"refiner: {' '.join(text.splitlines())}", file=sys.stderr)
