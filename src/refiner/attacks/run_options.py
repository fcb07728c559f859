"""How an attack is run: seed, chunk, state file and progress."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from refiner import checks
from refiner.attacks.simulation import Simulator

Progress = Callable[[int, int], None]
"""Called from time to time with the victim-iterations done and their total."""


def resume_path(resume: str | os.PathLike[str] | None) -> Path | None:
    """`resume` as a `Path`, or None if the state is not saved.

    >>> resume_path("out/a.safetensors").name
    'a.safetensors'
    >>> resume_path(5)
    Traceback (most recent call last):
    refiner.errors.SettingError: resume = 5: expected the path of a file or None
    """
    if resume is not None and not isinstance(resume, str | os.PathLike):
        raise checks.wrong("resume", resume, "the path of a file or None")
    return None if resume is None else Path(resume)


@dataclass(frozen=True)
class RunOptions:
    """How an attack is run: everything that is not one of the attack's own settings.

    Args:
        seed: Seed of the attacker's random draws.
        chunk: Victims attacked at a time; None takes as many as fit into memory.
        resume: The file that holds the state of the run, or None.
        on_progress: Called from time to time with the victim-iterations done and their total.
        deterministic: Whether a GPU also gives the same bits every time, at some cost in speed.
        simulator: Public images, and the defence as the attacker runs it on them. Never None in the run of an
            attack that needs `public` or `defense`.
    """

    seed: int = 0
    chunk: int | None = None
    resume: Path | None = None
    on_progress: Progress = lambda done, total: None
    deterministic: bool = False
    simulator: Simulator | None = None

    def __post_init__(self) -> None:
        checks.integer("seed", self.seed, 0)
        checks.flag("deterministic", self.deterministic)
        if self.chunk is not None:
            checks.integer("chunk", self.chunk, 1)
        if self.simulator is not None and not isinstance(self.simulator, Simulator):
            raise checks.wrong("simulator", self.simulator, "a Simulator or None")
