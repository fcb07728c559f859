"""Lines of code to copy."""

from dataclasses import dataclass
from typing import ClassVar

from refiner.report.markup import escape, paragraph


@dataclass(frozen=True)
class CodeBlock:
    """Lines of code that a reader can copy.

    Args:
        title: Heading of the section.
        code: The lines.
        note: Text above the lines; may be empty.

    >>> CodeBlock("Use it", "x < y").html("section-1")
    '<pre tabindex="0"><code>x &lt; y</code></pre>\\n'
    """

    caption_label: ClassVar[str] = ""
    title: str
    code: str
    note: str = ""

    def html(self, anchor: str) -> str:
        """Return the note and the lines."""
        note = paragraph(self.note, "note") if self.note else ""
        return f'{note}<pre tabindex="0"><code>{escape(self.code)}</code></pre>\n'
