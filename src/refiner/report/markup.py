"""Text as HTML: everything a caller wrote is escaped here, and nowhere is it anything but text."""

import html


def text(value: str) -> str:
    """Escaped for elements and attributes alike; what HTML can't hold becomes a replacement character.

    >>> text('<script>"')
    '&lt;script&gt;&quot;'
    """
    whole = value.encode("utf-8", "replace").decode("utf-8")
    clean = "".join("�" if (c < " " and c not in "\t\n") or "\x7f" <= c <= "\x9f" else c for c in whole)
    return html.escape(clean, quote=True)


def counted(number: int, thing: str) -> str:
    """So many things, in words.

    >>> counted(1, "victim"), counted(12, "victim")
    ('1 victim', '12 victims')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def paragraph(value: str, kind: str) -> str:
    """A paragraph of the class `kind`, or nothing if there is nothing to say.

    >>> paragraph("a < b", "note"), paragraph(" ", "note")
    ('<p class="note">a &lt; b</p>\\n', '')
    """
    return f'<p class="{kind}">{text(value)}</p>\n' if value.strip() else ""
