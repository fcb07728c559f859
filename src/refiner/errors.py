"""The errors that refiner raises on purpose: one line each, with the field, value and range as attributes."""

from collections.abc import Iterable


class RefinerError(Exception):
    """Base of every error that refiner raises on purpose.

    Args:
        message: The text of the error, one line. If left out it is composed of the other arguments.
        field: The argument or setting that is wrong.
        value: What it was. A tensor or a module is kept as a short description, never with its data.
        expected: What it should have been.
        problem: What is wrong with the value, for a composed message; "expected …" if left out.

    >>> error = SettingError(field="alpha", value=2, expected="a number in [0, 1]")
    >>> print(error)
    alpha = 2: expected a number in [0, 1]
    >>> error.field, error.value, error.expected
    ('alpha', 2, 'a number in [0, 1]')
    """

    def __init__(
        self,
        message: str | None = None,
        *,
        field: str | None = None,
        value: object = None,
        expected: str | None = None,
        problem: str | None = None,
    ) -> None:
        self.field = field
        self.value = _without_data(value)
        self.expected = expected
        self.problem = problem or (f"expected {expected}" if message is None else None)
        super().__init__(self.describe(field) if message is None else message)

    def describe(self, field: str | None) -> str:
        """Return the composed message under another name of the field, such as the option of a command.

        Args:
            field: The name to show.

        Returns:
            `field = value: problem`.

        >>> SettingError(field="alpha", value=2, expected="0 or 1").describe("--alpha")
        '--alpha = 2: expected 0 or 1'
        """
        # A longer limit for paths and names, so that they can be found.
        limit = 300 if isinstance(self.value, str) else 80
        return f"{field} = {show(self.value, limit)}: {self.problem}"


class SettingError(RefinerError, ValueError):
    """A setting has the wrong type or lies outside its range."""


class DataError(RefinerError, ValueError):
    """Data, labels or files are not what the call needs."""


class UnsupportedModelError(RefinerError, TypeError):
    """A model contains a module that can't be differentiated twice or that mixes victims."""


class ProtectionError(RefinerError, RuntimeError):
    """A defence could not protect a batch; nothing left the client."""


class ThreatModelError(RefinerError, ValueError):
    """An attack needs more than its threat model grants.

    Args:
        reason: What the attack needs, as one line without the remedy.
        missing: The capabilities to grant, by their names in `ThreatModel`.

    >>> error = ThreatModelError("ggl needs generator", missing=["generator"])
    >>> print(error)
    ggl needs generator; use ThreatModel(generator=True) if the attacker has it
    >>> error.missing
    ('generator',)
    """

    def __init__(self, reason: str, *, missing: Iterable[str] = ()) -> None:
        self.reason = reason
        self.missing = tuple(missing)
        grants = ", ".join(f"{name}=True" for name in self.missing)
        remedy = f"; use ThreatModel({grants}) if the attacker has it" if grants else ""
        expected = f"ThreatModel({grants})" if grants else None
        super().__init__(reason + remedy, field="threat", expected=expected)


class PluginWarning(UserWarning):
    """A third-party defence, attack or model could not be used and was skipped."""


class Description(str):
    """Text that stands for a value in an error: shown without quotes."""


def show(value: object, limit: int = 80) -> str:
    """Return `value` on one line of at most `limit` characters; a longer text is cut off.

    Args:
        value: Anything; strings are shown with quotes, a `Description` without.
        limit: The greatest number of characters.

    Returns:
        The text.

    >>> show("a\\nb"), show(Description("float32 tensor of shape [3]"))
    ("'a\\\\nb'", 'float32 tensor of shape [3]')
    """
    text = " ".join((str(value) if isinstance(value, Description) else repr(value)).split())
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _without_data(value: object) -> object:
    """`value`, or a description of it if it is an array, tensor or module: these may hold private data."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is not None and dtype is not None:
        return Description(f"{str(dtype).removeprefix('torch.')} tensor of shape {list(shape)}")
    if callable(getattr(value, "named_parameters", None)):
        return Description(type(value).__name__)
    return value
