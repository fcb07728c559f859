"""One attack with several settings on the same victims in one run, to tune an attacker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.base import Attack
from refiner.attacks.matching.gradient_matching import GradientMatching, PerVictimSettings
from refiner.attacks.matching.matching_attack import MatchingAttack
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.threat_model import Capability, ThreatModel
from refiner.core.task import Task

_TUNABLE = ("total_variation", "lr")


def tunable(attack: Attack) -> tuple[str, ...]:
    """Return the settings of `attack` that a `Sweep` can vary: total_variation and lr, if it has them.

    Args:
        attack: Any attack.

    Returns:
        Names of settings; none if the attack does not match gradients.

    >>> from refiner.attacks import GGL, InvertingGradients
    >>> tunable(InvertingGradients()), tunable(GGL())
    (('total_variation', 'lr'), ('lr',))
    """
    if not isinstance(attack, MatchingAttack):
        return ()
    names = {field.name for field in fields(attack)}
    return tuple(name for name in _TUNABLE if name in names)


@dataclass(frozen=True)
class Sweep(MatchingAttack):
    """Runs `attack` once with each of several settings, all in one batched run.

    The result has len(points) × V victims: all victims with the first point's settings, then all with the
    second's, and so on. A victim has the same random draws at every point, so that each point gives what it
    would give alone, up to rounding.

    Args:
        attack: The attack to vary.
        points: For each run the settings to change, by name; see `tunable`.

    Raises:
        SettingError: There are no points, or one has a setting that can't be varied or is out of range.

    >>> from refiner.attacks import InvertingGradients
    >>> len(Sweep(InvertingGradients(), [{"lr": 0.1}, {"lr": 0.01, "total_variation": 1.0}]).points)
    2
    """

    name: ClassVar[str] = "sweep"

    attack: MatchingAttack
    points: Sequence[Mapping[str, float]]

    def __post_init__(self) -> None:
        names = tunable(self.attack)
        expected = f"settings among {', '.join(names) or 'none'} of {self.attack.name}"
        for point in self.points:
            for key in point:
                if key not in names:
                    raise checks.wrong("points", key, expected)
            replace(self.attack, **point)
        if not self.points:
            raise checks.wrong("points", self.points, "one or more")

    def matching(self) -> GradientMatching:
        """Return the matching of the attack itself."""
        return self.attack.matching()

    def needs_for(self, task: Task) -> frozenset[Capability]:
        """Return what the attack itself needs."""
        return self.attack.needs_for(task)

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Reconstruct all victims at every point."""
        matching, labels = self.attack.prepare(observations, threat)
        count, victims, device = len(self.points), len(labels), observations[0].gradient.device

        def column(name: str) -> Tensor:
            # In float64, so that a learning rate is rounded once, as in an attack alone.
            values = [float(point.get(name, getattr(self.attack, name, 0.0))) for point in self.points]
            return torch.tensor(values, dtype=torch.float64, device=device).repeat_interleave(victims)

        numbers = torch.arange(victims, device=device).repeat(count)
        per_victim = PerVictimSettings(numbers, column("lr"), column("total_variation"))
        repeated = [replace(o, gradient=o.gradient.repeat(count, 1), labels=None) for o in observations]
        return matching.run(repeated, labels.repeat(count, 1), options, per_victim)
