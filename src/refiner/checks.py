"""Validation of settings: a wrong value becomes a one-line error naming field, value and range."""

import difflib
import math
from collections.abc import Collection

from refiner.errors import DataError, SettingError


def wrong(field: str, value: object, expected: str) -> SettingError:
    """The error for a setting, with field, value and what was expected.

    >>> str(wrong("alpha", 2, "a number in [0, 1]"))
    'alpha = 2: expected a number in [0, 1]'
    """
    return SettingError(field=field, value=value, expected=expected)


def number(field: str, value: object, low: float, high: float = math.inf, *, above: bool = False) -> float:
    """`value` as a float in [low, high], or in (low, high] with `above`; rejects NaN, bools and strings."""
    bracket = "(" if above else "["
    upper = "∞)" if high == math.inf else f"{high:g}]"
    expected = f"a number in {bracket}{low:g}, {upper}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(field, value, expected)
    # An integer too large for a float is out of every range.
    result = float(value) if abs(value) < 1e300 else math.inf
    inside = low < result <= high if above else low <= result <= high
    if not math.isfinite(result) or not inside:
        raise wrong(field, value, expected)
    return result


def integer(field: str, value: object, low: int, high: int | None = None) -> int:
    """`value` as an int in [low, high]; rejects bools and floats."""
    expected = f"an integer ≥ {low}" if high is None else f"an integer in [{low}, {high}]"
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(field, value, expected)
    if value < low or (high is not None and value > high):
        raise wrong(field, value, expected)
    return value


def choice(field: str, value: object, options: Collection[str]) -> str:
    """`value` as one of `options`."""
    if not isinstance(value, str) or value not in options:
        raise wrong(field, value, "one of " + ", ".join(repr(option) for option in options))
    return value


def flag(field: str, value: object) -> bool:
    """`value` as a bool; rejects 0 and 1."""
    if not isinstance(value, bool):
        raise wrong(field, value, "True or False")
    return value


def unknown_name(name: str, names: Collection[str], field: str) -> DataError:
    """The error for a name that is not one of `names`, with the most similar known one.

    >>> str(unknown_name("refinr", ["none", "refiner"], "defense"))
    "defense = 'refinr': unknown; did you mean 'refiner'? Known: none, refiner"
    """
    similar = difflib.get_close_matches(name, list(names), n=1, cutoff=0.4)
    hint = f"; did you mean {similar[0]!r}?" if similar else ";"
    known = ", ".join(names)
    return DataError(
        f"{field} = {name!r}: unknown{hint} Known: {known}",
        field=field,
        value=name,
        expected=f"one of {known}",
    )
