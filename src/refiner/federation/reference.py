"""A finished training to compare another one with, usually the same training without a defence."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refiner.errors import DataError, SettingError
from refiner.federation.experiment import Experiment, Outcome
from refiner.federation.training import Curve

# Settings in which a training and its reference must agree.
_MUST_MATCH = ("data", "size", "model")


@dataclass(frozen=True)
class Reference:
    """A finished training, as read from its output folder.

    Args:
        folder: The output folder.
        curve: Pairs of rounds done and test accuracy.
        differences: Settings, by name, that differ from those of the training it is compared with.
        losses: Pairs of rounds done and test loss; empty if they were not logged.
    """

    folder: Path
    curve: Curve
    differences: Mapping[str, object] = field(default_factory=dict)
    losses: Curve = field(default_factory=list)

    def compare(self, outcome: Outcome) -> "Comparison | None":
        """Compare accuracies after equal rounds: the most after which both trainings were evaluated.

        Args:
            outcome: The other training's outcome.

        Returns:
            The comparison; None if the trainings were never evaluated after equal rounds.

        >>> reference = Reference(Path("out/plain"), [(2, 0.25), (4, 0.5)])
        >>> reference.compare(Outcome(0.3, [(2, 0.2), (3, 0.3)], 1.0))
        Comparison(rounds=2, accuracy=0.2, reference_accuracy=0.25)
        """
        ours, theirs = dict(outcome.curve), dict(self.curve)
        common = ours.keys() & theirs.keys()
        return Comparison(max(common), ours[max(common)], theirs[max(common)]) if common else None

    def describe(self, outcome: Outcome) -> str:
        """One line with the PMM of an outcome, and everything that limits the comparison.

        >>> reference = Reference(Path("out/plain"), [(2, 0.25), (4, 0.5)], {"seed": 1})
        >>> reference.describe(Outcome(0.2, [(2, 0.2)], 1.0))
        'PMM 80.0 % (20.0 of 25.0 % after 2 rounds); the reference has seed = 1'
        """
        comparison = self.compare(outcome)
        if comparison is None:
            return f"no PMM: {self.folder} was not evaluated after the same number of rounds"
        ours, theirs = 100 * comparison.accuracy, 100 * comparison.reference_accuracy
        where = f"after {comparison.rounds:,} rounds"
        if comparison.rounds != outcome.curve[-1][0]:
            where += ", the most after which both were evaluated"
        line = f"PMM {comparison.pmm:.1f} % ({ours:.1f} of {theirs:.1f} % {where})"
        if self.differences:
            line += "; the reference has "
            line += ", ".join(f"{name} = {value!r}" for name, value in self.differences.items())
        return line


@dataclass(frozen=True)
class Comparison:
    """The accuracies of a training and its reference after equal rounds.

    Args:
        rounds: Rounds done.
        accuracy: The training's accuracy, in [0, 1].
        reference_accuracy: The reference's accuracy, in [0, 1].
    """

    rounds: int
    accuracy: float
    reference_accuracy: float

    @property
    def pmm(self) -> float:
        """PMM, the performance maintenance metric: the accuracy in percent of the reference's accuracy.

        NaN if the reference's accuracy is 0.

        >>> Comparison(8000, 0.45, 0.5).pmm
        90.0
        """
        return 100 * self.accuracy / self.reference_accuracy if self.reference_accuracy else math.nan


def read_reference(folder: Path, experiment: Experiment) -> Reference:
    """The training in `folder`, to compare `experiment` with.

    Args:
        folder: The output folder of a finished training.
        experiment: The training to be compared.

    Returns:
        The reference, with the settings in which it differs.

    Raises:
        DataError: If `folder` does not hold a finished training.
        SettingError: If the reference has another dataset, image size or model.

    >>> read_reference(Path("absent"), Experiment())
    Traceback (most recent call last):
    refiner.errors.DataError: reference = 'absent': no outcome.json of a finished training
    """
    try:
        outcome = _read_json(folder / "outcome.json")
        curve, losses = (
            [(int(rounds), float(value)) for rounds, value in pairs]
            for pairs in (outcome["curve"], outcome.get("losses", []))
        )
        curve[-1]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise _unreadable(folder, "no outcome.json of a finished training") from error
    try:
        reference = _read_json(folder / "settings.json")
        reference |= reference.pop("training")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _unreadable(folder, "no settings.json of a training") from error
    settings = experiment.fixed_settings()
    for name in _MUST_MATCH:
        if reference.get(name) != settings[name]:
            raise SettingError(
                field=name,
                value=settings[name],
                expected=repr(reference.get(name)),
                problem=f"the reference in {str(folder)!r} has {reference.get(name)!r}",
            )
    undefended = settings | {"defense": "none"}  # what a defence is compared with
    differences = {
        name: reference.get(name) for name, value in undefended.items() if reference.get(name) != value
    }
    return Reference(folder, curve, differences, [pair for pair in losses if math.isfinite(pair[1])])


def _unreadable(folder: Path, reason: str) -> DataError:
    return DataError(
        field="reference",
        value=str(folder),
        expected="the output folder of a finished training",
        problem=reason,
    )


def _read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))
