"""The library's errors in the words of the command line: options in place of Python's names."""

import re
from collections.abc import Mapping
from pathlib import Path

import typer


def in_options(message: str, options: Mapping[str, str], given: Mapping[str, object]) -> str:
    """`message` with the options that a user can set; `given` holds their values by the names of `options`.

    A field at its start becomes an option if its value is the one that was given: a setting of an attack may
    have the same name. So do "set NAME", and a `ThreatModel` where there are grants.

    >>> in_options("size = 0: expected an integer ≥ 1", {"size": "--size"}, {"size": 0})
    '--size = 0: expected an integer ≥ 1'
    >>> in_options("ggl needs generator; use ThreatModel(generator=True)", {"grant": "--grant"}, {})
    'ggl needs generator; use --grant generator'
    """
    fields, _, rest = message.partition(" = ")
    names = fields.split(" × ")
    if all(name in options and name in given for name in names):
        values = [_shown(given[name]) for name in names]
        start = r" × ".join(f"(?:{'|'.join(map(re.escape, each))})" for each in values)
        if re.match(start + ":", rest):
            message = " × ".join(options[name] for name in names) + " = " + rest
    message = re.sub(r"\bset (\w+)", lambda found: f"set {options.get(found[1], found[1])}", message)
    if "grant" in options:
        message = re.sub(r"ThreatModel\(([^)]*)\)", lambda found: _grants(found[1], options), message)
    return message


def in_words_of(command: typer.Context, message: str) -> str:
    """`message` with the options of the command that is run."""
    options = {
        parameter.name: parameter.opts[0]
        for parameter in command.command.params
        if parameter.name and parameter.opts[0].startswith("--")
    }
    return in_options(message, options, command.params)


def _shown(value: object) -> list[str]:
    """How an error may show a value, or each of many; what stands before the settings of an attack too."""
    many = value if isinstance(value, list | tuple) else [value]
    texts = [str(each) if isinstance(each, Path) else each for each in many]
    texts += [each.partition(":")[0] for each in texts if isinstance(each, str)]
    return [repr(each) for each in texts]


def _grants(settings: str, options: Mapping[str, str]) -> str:
    return " ".join(f"{options['grant']} {name}" for name in re.findall(r"(\w+)=True", settings))
