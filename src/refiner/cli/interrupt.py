"""Ctrl-C in a command that can be continued: stop at a safe point, and say how to go on."""

import shlex
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import typer


@contextmanager
def stop_on_interrupt(on_request: Callable[[], None]) -> Iterator[Callable[[], bool]]:
    """Turn the first Ctrl-C into a request to stop; the second one interrupts at once.

    Args:
        on_request: Called at the first Ctrl-C, in the middle of anything: it must not print.

    Yields:
        A function that returns whether Ctrl-C was pressed.
    """
    requested = False

    def request(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True
        on_request()

    before = signal.signal(signal.SIGINT, request)
    try:
        yield lambda: requested
    finally:
        signal.signal(signal.SIGINT, before)


def stopped_audit(done: int, total: int) -> typer.Exit:
    """Print how far an interrupted audit has come and how to continue, and return the exit with code 130.

    Args:
        done: Audits that are finished, and kept.
        total: All audits of the command.
    """
    message = f"stopped after {done} of {total} audits; run the same command to continue"
    print(f"refiner: {message}", file=sys.stderr)
    return typer.Exit(130)


def command_line(context: typer.Context, *more: str) -> str:
    """Return the command that was run, with all options that were given, for a shell.

    Args:
        context: The context of the command.
        more: Flags to add, if they were not given.

    Returns:
        The command on one line.
    """
    words = ["refiner", context.info_name or ""]
    for parameter in context.command.params:
        name, source = parameter.name or "", context.get_parameter_source(parameter.name or "")
        if source is None or source.name != "COMMANDLINE":
            continue
        value, option = context.params[name], parameter.opts[0]
        if isinstance(value, bool):
            words += [option] if value else []
        else:
            values = value if isinstance(value, list | tuple) else [value]
            words += [word for each in values for word in (option, str(each))]
    words += [flag for flag in more if flag not in words]
    return shlex.join(words)
