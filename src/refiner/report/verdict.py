"""The verdict on a victim as HTML: a colour, always with a word and an icon beside it."""

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from refiner.checks import choice

Verdict = Literal["exposed", "borderline", "protected"]
VERDICTS: tuple[Verdict, ...] = ("exposed", "borderline", "protected")
"""All verdicts, the worst first."""

# A triangle, a half disc, a shield: distinguishable without colour.
_ICON_PATHS: dict[Verdict, str] = {
    "exposed": "M8 1.2 15.4 14.4H.6ZM7.1 5.8v4.3h1.8V5.8ZM7.1 11.2v1.7h1.8v-1.7Z",
    "borderline": "M8 1a7 7 0 1 0 0 14A7 7 0 1 0 8 1ZM8 2.8a5.2 5.2 0 0 1 0 10.4Z",
    "protected": "M8 .8 14.2 3v4.8c0 3.7-2.7 6.2-6.2 7.4C4.5 14 1.8 11.5 1.8 7.8V3Z"
    "M7.1 11.2 12 6.3 10.8 5.1 7.1 8.8 5.3 7 4.1 8.2Z",
}


def icon_sprite() -> str:
    """Return the SVG that defines the icons once per page; `icon` refers to it."""
    symbols = "".join(
        f'<symbol id="icon-{verdict}" viewBox="0 0 16 16"><path fill-rule="evenodd" d="{path}"/></symbol>\n'
        for verdict, path in _ICON_PATHS.items()
    )
    return f'<svg class="sprite" width="0" height="0" aria-hidden="true">\n{symbols}</svg>\n'


def check_verdict(verdict: Verdict | None) -> None:
    """Raise `SettingError` unless `verdict` is None or one of `VERDICTS`.

    >>> check_verdict("safe")
    Traceback (most recent call last):
    refiner.errors.SettingError: verdict = 'safe': expected one of 'exposed', 'borderline', 'protected'
    """
    if verdict is not None:
        choice("verdict", verdict, VERDICTS)


def icon(verdict: Verdict) -> str:
    """Return the verdict's icon, hidden from screen readers."""
    return f'<svg class="icon" aria-hidden="true"><use href="#icon-{verdict}"></use></svg>'


def badge(verdict: Verdict) -> str:
    """Return the verdict as a badge with its icon and its word.

    >>> badge("exposed").endswith("exposed</span>")
    True
    """
    return f'<span class="badge {verdict}">{icon(verdict)}{verdict}</span>'


def share_bar(verdicts: Iterable[Verdict | None]) -> str:
    """Return a thin bar of the verdicts' shares, hidden from screen readers: a text stands beside it."""
    count = Counter(verdicts)
    segments = "".join(f'<span class="{v}" style="flex:{count[v]}"></span>' for v in VERDICTS if count[v])
    return f'<span class="bar" aria-hidden="true">{segments}</span>' if segments else ""


def verdict_counts(verdicts: Iterable[Verdict | None]) -> str:
    """Return the number of each verdict as text.

    >>> verdict_counts(["protected", "exposed", "protected"])
    '1 exposed, 2 protected'
    """
    count = Counter(verdicts)
    return ", ".join(f"{count[v]} {v}" for v in VERDICTS if count[v])
