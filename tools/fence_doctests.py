"""A Griffe extension for the API reference: doctest examples in docstrings become fenced code blocks."""

import re
from typing import Any

from griffe import Extension, Object

# From a prompt to the next blank line or the end; only where it is not fenced already.
EXAMPLE = re.compile(r"(?:^|(?<=\n))(?P<indent> *)>>> .*?(?=\n\s*\n|\Z)", re.DOTALL)


def fence(text: str) -> str:
    """`text` with each doctest example in a fenced block.

    >>> print(fence("Doubles.\\n\\n>>> double(2)\\n4\\n"))
    Doubles.
    <BLANKLINE>
    ```pycon
    >>> double(2)
    4
    ```
    """
    return EXAMPLE.sub(
        lambda match: f"{match['indent']}```pycon\n{match[0].rstrip()}\n{match['indent']}```", text
    )


class FenceDoctests(Extension):
    """Fences the examples of every docstring as it is loaded."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of one object."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = fence(obj.docstring.value)
