"""Groups of commands whose usage errors are one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_type_hints

import typer
from typer.core import TyperGroup
from typer.models import ArgumentInfo

from refiner.cli.common import print_line

# Click's usage error, found through typer, which bundles its own copy of click from version 0.26 on.
_UsageError: Any = typer.BadParameter.__base__


class OneLineGroup(TyperGroup):
    """A group of commands whose usage errors are one line on stderr, with exit code 2."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        for command in self.commands.values():
            _describe_arguments(command)

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
        print_line(f"{message[:1].lower()}{message[1:]} (see {help_command})")
        raise typer.Exit(2) from None


def _describe_arguments(command: Any) -> None:
    """Give a command's arguments their help texts, which typer before 0.26 loses with click 8.5."""
    hints = {} if command.callback is None else get_type_hints(command.callback, include_extras=True)
    for parameter in command.params:
        for info in getattr(hints.get(parameter.name), "__metadata__", ()):
            if isinstance(info, ArgumentInfo) and not parameter.help:
                parameter.help = info.help
