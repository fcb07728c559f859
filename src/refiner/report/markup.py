"""HTML escaping and small text helpers: every string of a caller passes through `escape`."""

import html


def escape(value: str) -> str:
    """Return `value` escaped for HTML elements and attributes.

    Control characters and lone surrogates, which HTML cannot hold, become replacement characters.

    >>> escape('<script>"')
    '&lt;script&gt;&quot;'
    """
    encodable = value.encode("utf-8", "replace").decode("utf-8")
    clean = "".join("�" if (c < " " and c not in "\t\n") or "\x7f" <= c <= "\x9f" else c for c in encodable)
    return html.escape(clean, quote=True)


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1.

    >>> count_of(1, "victim"), count_of(12, "victim")
    ('1 victim', '12 victims')
    """
    return f"{number} {noun}{'' if number == 1 else 's'}"


def paragraph(value: str, css_class: str) -> str:
    """Return an escaped `<p>` of the given class, or an empty string for blank text.

    >>> paragraph("a < b", "note"), paragraph(" ", "note")
    ('<p class="note">a &lt; b</p>\\n', '')
    """
    return f'<p class="{css_class}">{escape(value)}</p>\n' if value.strip() else ""
