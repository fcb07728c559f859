"""A finished training to compare another one with, usually the same training without a defence."""

import json
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
    """

    folder: Path
    curve: Curve
    differences: Mapping[str, object] = field(default_factory=dict)

    def accuracy_after(self, rounds: int) -> tuple[int, float]:
        """Rounds and accuracy of the evaluation after `rounds` or, if there is none, of the last one.

        >>> reference = Reference(Path("out/plain"), [(2, 0.25), (4, 0.5)])
        >>> reference.accuracy_after(2), reference.accuracy_after(3)
        ((2, 0.25), (4, 0.5))
        """
        return next((point for point in self.curve if point[0] == rounds), self.curve[-1])

    def compare(self, outcome: Outcome) -> str:
        """One line with the PMM of an outcome, and everything that limits the comparison.

        >>> reference = Reference(Path("out/plain"), [(2, 0.25), (4, 0.5)], {"seed": 1})
        >>> reference.compare(Outcome(0.2, [(2, 0.2)], 1.0))
        'PMM 80.00: relative to 25.00 % in out/plain after 2 rounds; there seed = 1'
        """
        done = outcome.curve[-1][0]
        rounds, accuracy = self.accuracy_after(done)
        pmm = outcome.pmm(accuracy)
        line = f"PMM {pmm:.2f}: relative to {100 * accuracy:.2f} % in {self.folder} after {rounds} rounds"
        if rounds != done:
            line += f", as it was not evaluated after {done}"
        if self.differences:
            line += "; there " + ", ".join(f"{name} = {value!r}" for name, value in self.differences.items())
        return line


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
        curve = [
            (int(rounds), float(score)) for rounds, score in _read_json(folder / "outcome.json")["curve"]
        ]
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
    return Reference(folder, curve, differences)


def _unreadable(folder: Path, reason: str) -> DataError:
    return DataError(
        field="reference",
        value=str(folder),
        expected="the output folder of a finished training",
        problem=reason,
    )


def _read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))
