"""One attack with several settings on the same victims, all in one run: how an attacker is tuned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from refiner.attacks.base import Attack, Reconstruction, Run
from refiner.attacks.matching import Each, Matching
from refiner.attacks.observation import Observation
from refiner.attacks.preset import MatchingAttack
from refiner.attacks.threat import Grant, ThreatModel
from refiner.core.task import Task
from refiner.errors import SettingError

_TUNABLE = ("total_variation", "lr")


def tunable(attack: Attack) -> tuple[str, ...]:
    """Those of the two settings that victims of one run can differ in which an attack has.

    >>> from refiner.attacks import GGL, InvertingGradients
    >>> tunable(InvertingGradients()), tunable(GGL())
    (('total_variation', 'lr'), ('lr',))
    """
    if not isinstance(attack, MatchingAttack):
        return ()
    held = {field.name for field in fields(attack)}
    return tuple(name for name in _TUNABLE if name in held)


@dataclass(frozen=True)
class Sweep(MatchingAttack):
    """`attack` with the settings of every point; it rebuilds all victims for the first point, then the next.

    A victim has the same draws at every point, so that a point is what it is alone, up to rounding.

    >>> from refiner.attacks import InvertingGradients
    >>> len(Sweep(InvertingGradients(), [{"lr": 0.1}, {"lr": 0.01, "total_variation": 1.0}]).points)
    2
    """

    name: ClassVar[str] = "sweep"

    attack: MatchingAttack
    points: Sequence[Mapping[str, float]]

    def __post_init__(self) -> None:
        known = tunable(self.attack)
        for point in self.points:
            for key in point:
                if key not in known:
                    raise SettingError(
                        f"points: {key} of {self.attack.name}, expected {' or '.join(known) or 'none'}"
                    )
            replace(self.attack, **point)
        if not self.points:
            raise SettingError("points: none, expected one or more")

    def engine(self) -> Matching:
        """The attack as the engine runs it, before its points."""
        return self.attack.engine()

    def needed(self, task: Task) -> frozenset[Grant]:
        """What the attack itself must be granted."""
        return self.attack.needed(task)

    def _rebuild(self, observations: list[Observation], granted: ThreatModel, run: Run) -> Reconstruction:
        engine, labels = self.attack._ready(observations, granted)
        times, victims, device = len(self.points), len(labels), observations[0].gradient.device

        def column(name: str) -> Tensor:
            # In float64, so that a rate is rounded once, as that of an attack alone.
            values = [float(point.get(name, getattr(self.attack, name, 0.0))) for point in self.points]
            return torch.tensor(values, dtype=torch.float64, device=device).repeat_interleave(victims)

        numbers = torch.arange(victims, device=device).repeat(times)
        each = Each(numbers, column("lr"), column("total_variation"))
        many = [replace(seen, gradient=seen.gradient.repeat(times, 1), labels=None) for seen in observations]
        return engine.run(many, labels.repeat(times, 1), run, each)
