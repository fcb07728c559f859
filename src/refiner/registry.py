"""Things by name, with settings: `NAME` or `NAME:setting=value,setting=value`."""

import inspect
import re
from ast import literal_eval
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import TypeVar

from refiner.checks import nearest
from refiner.errors import DataError

T = TypeVar("T")
_WORDS = {"true": True, "false": False, "none": None}


def make(registry: Mapping[str, Callable[..., T]], what: str, text: str, **settings: object) -> T:
    """What `text` names in a registry of dataclasses, with `settings` and, before them, those in `text`.

    >>> from refiner.core.optim import Adam
    >>> make({"adam": Adam}, "optimizer", "adam:lr=0.5,eps=1e-3")
    Adam(lr=0.5, betas=(0.9, 0.999), eps=0.001)
    >>> make({"adam": Adam}, "optimizer", "adam:rate=1")
    Traceback (most recent call last):
    refiner.errors.DataError: setting of adam = 'rate': unknown... Known: lr, betas, eps
    """
    name, _, rest = text.partition(":")
    if name not in registry:
        raise nearest(name, registry, what)
    told = [_setting(part, text) for part in _parts(rest)]
    for place, (key, _) in enumerate(told):
        if key in dict(told[:place]):
            raise DataError(f"{what} = {text!r}: {key} is set twice")
    chosen = {**settings, **dict(told)}
    known = _known(registry[name])
    for key in chosen:
        if key not in known:
            raise nearest(key, known, f"setting of {name}")
    return registry[name](**chosen)


def split(names: Collection[str], text: str) -> list[str]:
    """The parts of `NAME:setting=value+NAME…`: a plus parts them where one of `names` follows it.

    >>> split(["pruning", "gq"], "pruning:rate=8e-1,floor=1e+2+gq:bits=8")
    ['pruning:rate=8e-1,floor=1e+2', 'gq:bits=8']
    >>> split(["pruning", "gq"], "pruning+qg:bits=8")
    ['pruning', 'qg:bits=8']
    """
    known = "|".join(re.escape(name) for name in names)
    parts = []
    for part in re.split(rf"\+(?=(?:{known})(?:[:+]|$))", text):
        # Before its first setting there is no value that a plus could belong to: what follows is a name.
        head, colon, rest = part.partition(":")
        *before, last = head.split("+")
        parts += [*before, last + colon + rest]
    return parts


def _parts(rest: str) -> list[str]:
    """Split at the commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in rest:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part]


def _setting(part: str, text: str) -> tuple[str, object]:
    key, equals, value = part.partition("=")
    if not equals or not key or not value:
        raise DataError(f"{text.partition(':')[0]}: expected NAME:setting=value,setting=value")
    if value.lower() in _WORDS:
        return key.strip(), _WORDS[value.lower()]
    try:
        return key.strip(), literal_eval(value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return key.strip(), value


def dataclass_of(make: Callable[..., object]) -> type:
    """The dataclass that `make` is, or whose class method it is.

    >>> from refiner.defenses import Refiner
    >>> dataclass_of(Refiner.paper).__name__
    'Refiner'
    """
    kind: type = make if inspect.isclass(make) else getattr(make, "__self__", type(make))
    return kind


def _known(make: Callable[..., object]) -> list[str]:
    return [f.name for f in fields(dataclass_of(make)) if f.init]
