"""The settings of a registered defence or attack: from its fields, their docstrings and its own checks."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise

from refiner.errors import RefinerError
from refiner.registry import dataclass_of


@dataclass(frozen=True)
class Setting:
    """One setting: its name, type, default, range and help text.

    >>> Setting("bits", "int", "8", "an integer in [1, 16]", "").brief()
    'bits = 8, an integer in [1, 16]'
    """

    name: str
    kind: str
    """Its type."""
    default: str
    """As it is written on the command line."""
    expected: str
    """Its range, as its own validation error states it; empty where every value is accepted."""
    help: str
    private: bool = False
    """Whether it never leaves the client."""

    def brief(self) -> str:
        """Name and default, with the range where the type does not imply it."""
        range_text = "" if self.kind == "bool" or not self.expected else f", {self.expected}"
        return f"{self.name} = {self.default}{range_text}"


def settings_of(factory: Callable[..., object]) -> list[Setting]:
    """The settings of a dataclass, or of a class method that builds one, with that method's defaults.

    >>> from refiner.attacks import GGL
    >>> settings_of(GGL)[1].brief()
    'lr = 0.1, a number in (0, ∞)'
    """
    kind, example = dataclass_of(factory), factory()
    docs = attribute_docs(kind)
    return [
        Setting(
            field.name,
            _kind(field.type),
            as_option_text(getattr(example, field.name)),
            _expected(factory, field.name, optional="None" in _kind(field.type)),
            docs.get(field.name, ""),
            bool(field.metadata.get("private")),
        )
        for field in fields(kind)
        if field.init
    ]


def attribute_docs(kind: type) -> dict[str, str]:
    """The docstrings below the annotated attributes of a class and its bases, each as one line.

    >>> from refiner.attacks import GGL
    >>> attribute_docs(GGL)["divergence"]
    "Weight of the latents' divergence from a standard normal."
    """
    docs: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        except (OSError, TypeError, SyntaxError):  # a class without a source file
            continue
        for line, below in pairwise(getattr(tree, "body", [])):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and _is_text(below):
                docs[line.target.id] = " ".join(below.value.value.split())
    return docs


def as_option_text(value: object) -> str:
    """A value as it is written on the command line; an attack or a defence by its name.

    >>> as_option_text(None), as_option_text(True), as_option_text((0.0, 1.0)), as_option_text("blend")
    ('none', 'true', '(0.0, 1.0)', 'blend')
    """
    if callable(getattr(value, "settings", None)):
        return str(getattr(value, "name", value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


class _InvalidValue:
    """A value that no setting accepts."""


def _expected(factory: Callable[..., object], name: str, optional: bool) -> str:
    """The range of a setting, from the error for an invalid value: one source for both."""
    try:
        factory(**{name: _InvalidValue()})
    except RefinerError as error:
        expected = error.expected or ""
        return f"{expected} or none" if expected and optional and "None" not in expected else expected
    except (TypeError, ValueError, AttributeError):  # rejected without naming a range
        return ""
    return ""


def _kind(annotation: object) -> str:
    """The name of a type without its modules."""
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(annotation))


def _is_text(line: ast.stmt) -> bool:
    return (
        isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and type(line.value.value) is str
    )
