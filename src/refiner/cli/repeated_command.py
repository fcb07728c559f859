"""The command that was run, with other options."""

import shlex
from collections.abc import Collection

import typer

from refiner.cli.tabular import is_given


def repeated_command(command: typer.Context, added: str, without: Collection[str] = ()) -> str:
    """Return the command with the options that were given, quoted for a shell.

    Args:
        command: The command that was run.
        added: Words to add at the end.
        without: Names of parameters to leave out.

    Returns:
        The line.
    """
    words = ["refiner", str(command.info_name)]
    for parameter in command.command.params:
        name = str(parameter.name)
        if not is_given(command, name) or name in without:
            continue
        value = command.params[name]
        for each in value if isinstance(value, list | tuple) else [value]:
            words += [max(parameter.opts, key=len), *([] if isinstance(each, bool) else [str(each)])]
    return f"{shlex.join(words)} {added}"
