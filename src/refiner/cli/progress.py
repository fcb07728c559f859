"""Progress on stderr: a bar in a terminal, a line of text now and then in a file."""

import time
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

# A log stays short, and nobody waits long for a sign of life.
SECONDS_BETWEEN_LINES = 15.0


def progress_bar(*columns: ProgressColumn, quiet: bool = False) -> Progress:
    """Return a progress bar on stderr that disappears when it is done.

    Args:
        columns: The columns of the bar; by default description, bar, count and remaining time.
        quiet: Whether to show nothing, and to print nothing on the bar's console.

    Returns:
        The bar; if stderr is not a terminal, one that prints a line from time to time.
    """
    if not columns:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    stderr = Console(stderr=True, quiet=quiet)
    # A step may take minutes, and a rate needs two steps.
    kind = Progress if stderr.is_terminal else _Lines
    return kind(
        *columns,
        console=stderr,
        transient=True,
        disable=quiet or not stderr.is_terminal,
        speed_estimate_period=600,
    )


class _Lines(Progress):
    """Progress as plain lines, none more than every `SECONDS_BETWEEN_LINES`."""

    def __init__(self, *columns: ProgressColumn, **settings: Any) -> None:
        super().__init__(*columns, **settings)
        self._printed = time.monotonic()

    def update(self, task_id: TaskID, **changes: Any) -> None:
        """Change a task, and print a line about it if the last one is old enough."""
        super().update(task_id, **changes)
        if time.monotonic() - self._printed >= SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            self.console.print(_line(self._tasks[task_id]), highlight=False, markup=False, soft_wrap=True)


def _line(task: Task) -> str:
    """Return "description: done of total, further fields, elapsed time, remaining time if it is known"."""
    count = f"{task.completed:,.0f}" + ("" if task.total is None else f" of {task.total:,.0f}")
    fields = [str(text) for text in task.fields.values() if text]
    left = [] if not task.time_remaining else [f"about {task.time_remaining:,.0f} s left"]
    return ", ".join([f"{task.description}: {count}", *fields, f"{task.elapsed or 0:,.0f} s", *left])


class Rate(ProgressColumn):
    """A progress column that shows the number of units per second."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        """Return the column's text."""
        speed = task.finished_speed or task.speed
        if speed is None:
            return Text("")
        return Text(f"{speed:,.0f} {self.unit}/s" if speed >= 10 else f"{speed:.2g} {self.unit}/s")
