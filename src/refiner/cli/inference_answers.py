"""What the audits of one inference question found, as `refiner audit` shows and keeps it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from refiner.files import write_atomically
from refiner.report import Page


@dataclass(frozen=True)
class InferenceAnswers:
    """The audits of one question, of all defences."""

    question: str
    """membership or attribute: the audits' folder, and their key in JSON."""
    record: Mapping[str, object]
    """The source of the images and the audits, as JSON values."""
    page: Page
    """Their report, if nothing else is audited; its sections otherwise stand in the report of the rest."""
    show: Callable[[], None]
    """Prints their table."""

    def save(self, out: Path) -> None:
        """Write `results.json` into the folder of the question below `out`."""
        text = json.dumps(self.record, indent=1, ensure_ascii=False)
        # `refiner compare` reads the files in the folder itself, which are audits of images.
        write_atomically(out / self.question / "results.json", f"{text}\n".encode())


def joint_page(answers: Sequence[InferenceAnswers]) -> Page:
    """Return the report of one question, or of several together.

    Args:
        answers: At least one.
    """
    first = answers[0].page
    if len(answers) == 1:
        return first
    return replace(
        first,
        title=f"What uploads reveal: {' and '.join(answer.question for answer in answers)}",
        summary=" ".join(answer.page.summary for answer in answers),
        facts=[(f"{one.question}: {name}", value) for one in answers for name, value in one.page.facts],
        sections=[section for answer in answers for section in answer.page.sections],
    )
