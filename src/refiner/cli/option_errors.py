"""Errors of the library for users of the command line: with options in place of Python arguments."""

from collections.abc import Mapping
from os import PathLike

import typer

from refiner.errors import RefinerError, ThreatModelError


def command_message(error: RefinerError, context: typer.Context) -> str:
    """Return the message of `error` with the options of the command that was run."""
    options = {
        parameter.name: parameter.opts[0]
        for parameter in context.command.params
        if parameter.name and parameter.opts[0].startswith("--")
    }
    return message_with_options(error, options, context.params)


def message_with_options(
    error: RefinerError, options: Mapping[str, str], values: Mapping[str, object]
) -> str:
    """Return the message of `error` with the option that the user can change.

    An error is about an option if its field is the option's parameter and its value is the option's value:
    a setting of an attack may have the same name as an option.

    Args:
        error: The error.
        options: The options of the command, by parameter name.
        values: The values of the command's parameters, by name.

    Returns:
        The message, one line.

    >>> from refiner.errors import SettingError
    >>> error = SettingError(field="size", value=0, expected="an integer ≥ 1")
    >>> message_with_options(error, {"size": "--size"}, {"size": 0})
    '--size = 0: expected an integer ≥ 1'
    >>> error = ThreatModelError("ggl needs generator", missing=["generator"])
    >>> message_with_options(error, {"grant": "--grant"}, {})
    'ggl needs generator; add --grant generator if the attacker has it'
    """
    message = str(error)
    if isinstance(error, ThreatModelError) and "grant" in options:
        denials = values.get("deny")
        denied = denials if isinstance(denials, list | tuple) else ()
        add = [f"{options['grant']} {name}" for name in error.missing if name not in denied]
        drop = [f"{options['deny']} {name}" for name in error.missing if name in denied]
        remedies = [f"{verb} {' '.join(names)}" for verb, names in (("add", add), ("drop", drop)) if names]
        return f"{error.reason}; {' and '.join(remedies)} if the attacker has it"
    field = error.field
    if (
        field is None
        or field not in options
        or field not in values
        or not _matches(error.value, values[field])
    ):
        return message
    return f"{message} ({options[field]})" if error.problem is None else error.describe(options[field])


def _matches(value: object, option_value: object) -> bool:
    """Return whether `value` is the option's value, or one of them if the option can be repeated."""
    candidates = option_value if isinstance(option_value, list | tuple) else [option_value]
    texts = [_plain(candidate) for candidate in candidates]
    # "ggl:lr=0.1" is the attack "ggl" with a setting.
    names = [text.partition(":")[0] for text in texts if isinstance(text, str)]
    return any(type(_plain(value)) is type(text) and _plain(value) == text for text in [*texts, *names])


def _plain(value: object) -> object:
    return str(value) if isinstance(value, PathLike) else value
