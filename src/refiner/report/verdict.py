"""What an attack's success means for a victim: a colour, and always a word and a shape beside it."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from refiner.checks import choice

Verdict = Literal["exposed", "borderline", "protected"]
VERDICTS: tuple[Verdict, ...] = ("exposed", "borderline", "protected")  # the worst first

# A triangle, a half disc, a shield: told apart without any colour.
_SHAPES: dict[Verdict, str] = {
    "exposed": "M8 1.2 15.4 14.4H.6ZM7.1 5.8v4.3h1.8V5.8ZM7.1 11.2v1.7h1.8v-1.7Z",
    "borderline": "M8 1a7 7 0 1 0 0 14A7 7 0 1 0 8 1ZM8 2.8a5.2 5.2 0 0 1 0 10.4Z",
    "protected": "M8 .8 14.2 3v4.8c0 3.7-2.7 6.2-6.2 7.4C4.5 14 1.8 11.5 1.8 7.8V3Z"
    "M7.1 11.2 12 6.3 10.8 5.1 7.1 8.8 5.3 7 4.1 8.2Z",
}


def sprite() -> str:
    """The shapes, drawn once a page; every icon refers to them."""
    symbols = "".join(
        f'<symbol id="icon-{verdict}" viewBox="0 0 16 16"><path fill-rule="evenodd" d="{shape}"/></symbol>\n'
        for verdict, shape in _SHAPES.items()
    )
    return f'<svg class="sprite" width="0" height="0" aria-hidden="true">\n{symbols}</svg>\n'


def check_verdict(verdict: Verdict | None) -> None:
    """Refuse a word that is no verdict.

    >>> check_verdict("safe")
    Traceback (most recent call last):
    refiner.errors.SettingError: verdict = 'safe': expected one of 'exposed', 'borderline', 'protected'
    """
    if verdict is not None:
        choice("verdict", verdict, VERDICTS)


def icon(verdict: Verdict) -> str:
    """The verdict's shape, for the eye only."""
    return f'<svg class="icon" aria-hidden="true"><use href="#icon-{verdict}"></use></svg>'


def badge(verdict: Verdict) -> str:
    """The verdict as shape and word.

    >>> badge("exposed").endswith("exposed</span>")
    True
    """
    return f'<span class="badge {verdict}">{icon(verdict)}{verdict}</span>'


def bar(verdicts: Iterable[Verdict | None]) -> str:
    """A thin bar of the verdicts' shares, for the eye only: words stand beside it."""
    count = Counter(verdicts)
    parts = "".join(f'<span class="{v}" style="flex:{count[v]}"></span>' for v in VERDICTS if count[v])
    return f'<span class="bar" aria-hidden="true">{parts}</span>' if parts else ""


def tally(verdicts: Iterable[Verdict | None]) -> str:
    """How many of each verdict, in words.

    >>> tally(["protected", "exposed", "protected"])
    '1 exposed, 2 protected'
    """
    count = Counter(verdicts)
    return ", ".join(f"{count[v]} {v}" for v in VERDICTS if count[v])
