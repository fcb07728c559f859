"""What a thing of a registry is set by: read from its fields, their docstrings and its own checks."""

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
    """One setting, in words.

    >>> Setting("bits", "int", "8", "an integer in [1, 16]", "").brief()
    'bits = 8, an integer in [1, 16]'
    """

    name: str
    kind: str
    """Its type."""
    default: str
    """As it is written on the command line."""
    expected: str
    """The values that it may have, as its own error tells them; empty where nothing is refused."""
    help: str
    private: bool = False
    """Whether it stays on the client."""

    def brief(self) -> str:
        """Name, default and range, if it has one that the default does not tell."""
        told = "" if self.kind == "bool" or not self.expected else f", {self.expected}"
        return f"{self.name} = {self.default}{told}"


def settings_of(make: Callable[..., object]) -> list[Setting]:
    """The settings of a dataclass, or of what a class method of one makes.

    >>> from refiner.attacks import GGL
    >>> settings_of(GGL)[1].brief()
    'lr = 0.1, a number in (0, ∞)'
    """
    kind, example = dataclass_of(make), make()
    docs = attribute_docs(kind)
    return [
        Setting(
            field.name,
            _kind(field.type),
            written(getattr(example, field.name)),
            _expected(make, field.name, optional="None" in _kind(field.type)),
            docs.get(field.name, ""),
            bool(field.metadata.get("private")),
        )
        for field in fields(kind)
        if field.init
    ]


def attribute_docs(kind: type) -> dict[str, str]:
    """The docstrings below a class's annotated attributes, its bases' too, each as one line.

    >>> from refiner.attacks import GGL
    >>> attribute_docs(GGL)["divergence"]
    "Weight of the latents' divergence from a standard normal."
    """
    docs: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(owner))).body
        except (OSError, TypeError, SyntaxError):  # of no file
            continue
        for line, below in pairwise(getattr(tree, "body", [])):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and _is_text(below):
                docs[line.target.id] = " ".join(below.value.value.split())
    return docs


def written(value: object) -> str:
    """A value as it is written on the command line.

    >>> written(None), written(True), written((0.0, 1.0)), written("blend")
    ('none', 'true', '(0.0, 1.0)', 'blend')
    """
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


class _Unfit:
    """Fits no setting."""


def _expected(make: Callable[..., object], name: str, optional: bool) -> str:
    """What a setting may be, by the error for what it may not be: one source for both."""
    try:
        make(**{name: _Unfit()})
    except RefinerError as error:
        _, told, expected = str(error).partition(": expected ")
        return f"{expected} or none" if told and optional and "None" not in expected else expected
    except (TypeError, ValueError, AttributeError):  # refused without a range
        return ""
    return ""


def _kind(annotation: object) -> str:
    """A type without the modules that it comes from."""
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(annotation))


def _is_text(line: ast.stmt) -> bool:
    return (
        isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and type(line.value.value) is str
    )
