"""Validation of settings: a wrong value becomes a one-line error naming field, value and range."""

import difflib
import math
from collections.abc import Collection

from refiner.errors import DataError, SettingError


def wrong(field: str, value: object, expected: str) -> SettingError:
    """Return the error for a setting.

    Args:
        field: The setting.
        value: Its wrong value.
        expected: What it should have been.

    Returns:
        An error to raise.

    >>> str(wrong("alpha", 2, "a number in [0, 1]"))
    'alpha = 2: expected a number in [0, 1]'
    """
    return SettingError(field=field, value=value, expected=expected)


def number(field: str, value: object, low: float, high: float = math.inf, *, above: bool = False) -> float:
    """Return `value` as a float; raises `SettingError` if it is out of range, or NaN, a bool or a string.

    Args:
        field: The setting, for the error.
        value: What the user gave.
        low: The lowest value allowed.
        high: The highest value allowed.
        above: Whether `low` itself is not allowed.

    Returns:
        The number.
    """
    bracket = "(" if above else "["
    upper = "∞)" if high == math.inf else f"{high:g}]"
    expected = f"a number in {bracket}{low:g}, {upper}"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(field, value, expected)
    # An integer too large for a float is out of every range.
    result = float(value) if abs(value) < 1e300 else math.inf
    if result == high == math.inf and 1e300 <= value < math.inf:
        raise wrong(field, value, f"a number in {bracket}{low:g}, 1e300)")
    inside = low < result <= high if above else low <= result <= high
    if not math.isfinite(result) or not inside:
        raise wrong(field, value, expected)
    return result


def integer(field: str, value: object, low: int, high: int | None = None) -> int:
    """Return `value`; raises `SettingError` unless it is an int in [low, high], and for a bool.

    Args:
        field: The setting, for the error.
        value: What the user gave.
        low: The lowest value allowed.
        high: The highest value allowed; None for no limit.

    Returns:
        The integer.
    """
    expected = f"an integer ≥ {low}" if high is None else f"an integer in [{low}, {high}]"
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(field, value, expected)
    if value < low or (high is not None and value > high):
        raise wrong(field, value, expected)
    return value


def choice(field: str, value: object, options: Collection[str]) -> str:
    """Return `value`; raises `SettingError` unless it is one of `options`.

    Args:
        field: The setting, for the error.
        value: What the user gave.
        options: The names allowed.

    Returns:
        The name.
    """
    if not isinstance(value, str) or value not in options:
        raise wrong(field, value, "one of " + ", ".join(repr(option) for option in options))
    return value


def flag(field: str, value: object) -> bool:
    """Return `value`; raises `SettingError` unless it is a bool, also for 0 and 1.

    Args:
        field: The setting, for the error.
        value: What the user gave.

    Returns:
        The bool.
    """
    if not isinstance(value, bool):
        raise wrong(field, value, "True or False")
    return value


def unknown_name(name: str, names: Collection[str], field: str) -> DataError:
    """Return the error for a name that is not one of `names`, with the most similar known one.

    Args:
        name: The unknown name.
        names: The known ones.
        field: What the name is called, such as "defense".

    Returns:
        An error to raise.

    >>> str(unknown_name("refinr", ["none", "refiner"], "defense"))
    "defense = 'refinr': unknown; did you mean 'refiner'? Known: none, refiner"
    """
    similar = difflib.get_close_matches(name, list(names), n=1, cutoff=0.4)
    hint = f"; did you mean {similar[0]!r}?" if similar else ";"
    known = ", ".join(names)
    return DataError(
        field=field,
        value=name,
        expected=f"one of {known}",
        problem=f"unknown{hint} Known: {known}",
    )
