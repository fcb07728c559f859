"""What every attack is: settings, and one way in that takes no more than is granted."""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import ClassVar

from torch import Tensor, nn

from refiner import checks
from refiner.attacks.observation import Observation, check_together
from refiner.attacks.threat import Grant, ThreatModel
from refiner.core.determinism import repeatable
from refiner.core.task import Task
from refiner.errors import DataError, ThreatModelError

Progress = Callable[[int, int], None]
"""Called now and then with the victim-iterations done and their total."""


@dataclass(frozen=True, eq=False)
class Reconstruction:
    """What an attack made of an observation."""

    x: Tensor
    """`[V, B, *input]`"""
    labels: Tensor
    """`[V, B]`, as granted or inferred."""
    objective: Tensor
    """The attacker's own best value, `[V]`: all it has to choose by."""
    diverged: Tensor
    """`[V]`: frozen at its best when its objective ceased to be a number."""
    seconds: float


def state_path(resume: str | os.PathLike[str] | None) -> Path | None:
    """Where the state is kept, if it is.

    >>> state_path("out/a.safetensors").name
    'a.safetensors'
    >>> state_path(5)
    Traceback (most recent call last):
    refiner.errors.SettingError: resume = 5: expected the path of a file or None
    """
    if resume is not None and not isinstance(resume, str | os.PathLike):
        raise checks.wrong("resume", resume, "the path of a file or None")
    return None if resume is None else Path(resume)


@dataclass(frozen=True)
class Run:
    """How an attack is run, apart from what it is."""

    seed: int = 0
    chunk: int | None = None
    resume: Path | None = None
    on_progress: Progress = lambda done, total: None
    deterministic: bool = False
    """Whether a GPU, too, gives the same bits every time, at some cost in speed."""

    def __post_init__(self) -> None:
        checks.integer("seed", self.seed, 0)
        checks.flag("deterministic", self.deterministic)
        if self.chunk is not None:
            checks.integer("chunk", self.chunk, 1)


@dataclass(frozen=True)
class Attack(ABC):
    """Rebuilds batches from uploads; subclasses are frozen dataclasses of their settings."""

    name: ClassVar[str]
    needs: ClassVar[frozenset[Grant]] = frozenset()

    def reconstruct(
        self,
        seen: Observation | Sequence[Observation],
        *,
        threat: ThreatModel | None = None,
        seed: int = 0,
        chunk: int | None = None,
        resume: str | os.PathLike[str] | None = None,
        on_progress: Progress = lambda done, total: None,
        deterministic: bool = False,
    ) -> Reconstruction:
        """Rebuild every victim's batch from one upload of it, or from several.

        `chunk` victims are attacked at a time; None takes what fits the memory. With `resume` the state is
        kept in that file, and a call with the same arguments goes on where the last one stopped. With
        `deterministic` a GPU, too, gives the same bits every time, at some cost in speed.
        """
        run = Run(seed, chunk, state_path(resume), on_progress, deterministic)
        observations = [seen] if isinstance(seen, Observation) else seen
        if not isinstance(observations, Sequence) or not all(
            isinstance(o, Observation) for o in observations
        ):
            raise DataError(f"seen = {type(seen).__name__}: expected an Observation, or several in a list")
        if threat is not None and not isinstance(threat, ThreatModel):
            raise checks.wrong("threat", threat, "a ThreatModel")
        check_together(observations)
        granted = threat or ThreatModel()
        granted.check(self.needed(observations[0].task), self.name)
        if not granted.labels and any(o.labels is not None for o in observations):
            raise ThreatModelError("the observation holds labels, which this threat model does not grant")
        if granted.labels and observations[0].labels is None:
            raise DataError("the threat model grants labels, but the observation holds none")
        with repeatable(deterministic, observations[0].gradient.device):
            return self._rebuild(list(observations), granted, run)

    def settings(self) -> dict[str, object]:
        """The settings by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.init}

    @abstractmethod
    def check(self, task: Task) -> None:
        """Refuse a task that this attack can't be run on, before anything is run."""

    def needed(self, task: Task) -> frozenset[Grant]:
        """What this attack must be granted for a task."""
        return self.needs

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """The networks that this attack brings along, by name: its result depends on their weights."""
        return {}

    @abstractmethod
    def _rebuild(self, observations: list[Observation], granted: ThreatModel, run: Run) -> Reconstruction: ...
