"""The verdict on an image or a defence as HTML: a colour, always with a word and an icon beside it."""

from collections import Counter
from collections.abc import Iterable
from html import escape
from typing import Literal

from refiner.checks import choice

Verdict = Literal["visible", "identifiable", "neither", "no verdict"]
VERDICTS: tuple[Verdict, ...] = ("visible", "identifiable", "neither", "no verdict")
"""All verdicts, the worst first."""

# An eye, a half disc, a shield and a bar: distinguishable without colour.
_ICON_PATHS: dict[Verdict, str] = {
    "visible": "M8 2.8C4.6 2.8 1.8 4.8.4 8c1.4 3.2 4.2 5.2 7.6 5.2s6.2-2 7.6-5.2C14.2 4.8 11.4 2.8 8 2.8Z"
    "M8 4.6a3.4 3.4 0 1 1 0 6.8 3.4 3.4 0 1 1 0-6.8ZM8 6.3a1.7 1.7 0 1 0 0 3.4 1.7 1.7 0 1 0 0-3.4Z",
    "identifiable": "M8 1a7 7 0 1 0 0 14A7 7 0 1 0 8 1ZM8 2.8a5.2 5.2 0 0 1 0 10.4Z",
    "neither": "M8 .8 14.2 3v4.8c0 3.7-2.7 6.2-6.2 7.4C4.5 14 1.8 11.5 1.8 7.8V3Z"
    "M7.1 11.2 12 6.3 10.8 5.1 7.1 8.8 5.3 7 4.1 8.2Z",
    "no verdict": "M8 1a7 7 0 1 0 0 14A7 7 0 1 0 8 1ZM4.4 7.1h7.2v1.8H4.4Z",
}


def css_class(verdict: Verdict) -> str:
    """Return the verdict's class in CSS.

    >>> css_class("no verdict")
    'no-verdict'
    """
    return verdict.replace(" ", "-")


def icon_sprite() -> str:
    """Return the SVG that defines the icons once per page; `icon` refers to it."""
    symbols = "".join(
        f'<symbol id="icon-{css_class(verdict)}" viewBox="0 0 16 16"><path fill-rule="evenodd" d="{path}"/>'
        "</symbol>\n"
        for verdict, path in _ICON_PATHS.items()
    )
    return f'<svg class="sprite" width="0" height="0" aria-hidden="true">\n{symbols}</svg>\n'


def check_verdict(verdict: Verdict | None) -> None:
    """Raise `SettingError` unless `verdict` is None or one of `VERDICTS`.

    >>> check_verdict("safe")
    Traceback (most recent call last):
    refiner.errors.SettingError: verdict = 'safe': expected one of 'visible', 'identifiable', ...
    """
    if verdict is not None:
        choice("verdict", verdict, VERDICTS)


def icon(verdict: Verdict) -> str:
    """Return the verdict's icon, hidden from screen readers."""
    return f'<svg class="icon" aria-hidden="true"><use href="#icon-{css_class(verdict)}"></use></svg>'


def badge(verdict: Verdict, *, long: bool = False, text: str = "") -> str:
    """Return the verdict as a badge with its icon and its word, or with words that need no table around them.

    Args:
        verdict: The verdict.
        long: Whether the words stand alone.
        text: Other words.

    >>> badge("visible").endswith("visible</span>")
    True
    >>> badge("neither", long=True).endswith("neither visible nor identifiable</span>")
    True
    """
    text = text or ("neither visible nor identifiable" if long and verdict == "neither" else verdict)
    return f'<span class="badge {css_class(verdict)}">{icon(verdict)}{escape(text)}</span>'


def share_bar(verdicts: Iterable[Verdict | None]) -> str:
    """Return a thin bar of the verdicts' shares, hidden from screen readers: a text stands beside it."""
    count = Counter(verdicts)
    segments = "".join(
        f'<span class="{css_class(v)}" style="flex:{count[v]}"></span>' for v in VERDICTS if count[v]
    )
    return f'<span class="bar" aria-hidden="true">{segments}</span>' if segments else ""


def verdict_counts(verdicts: Iterable[Verdict | None]) -> str:
    """Return the number of each verdict as text; visible images are identifiable too, and are counted once.

    >>> verdict_counts(["neither", "visible", "neither"]), verdict_counts(["identifiable", "visible"])
    ('1 visible, 2 neither', '1 visible, 1 more identifiable')
    """
    count = Counter(verdicts)
    more = "more " if count["visible"] else ""
    words = {verdict: f"{more}{verdict}" if verdict == "identifiable" else verdict for verdict in VERDICTS}
    return ", ".join(f"{count[v]} {words[v]}" for v in VERDICTS if count[v])
