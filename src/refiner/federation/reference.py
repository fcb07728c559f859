"""Another training to compare with: whether it can be, and how good it was after as many rounds."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from refiner.errors import DataError, SettingError
from refiner.federation.experiment import Experiment, Outcome
from refiner.federation.training import Curve

_SAME = ("data", "size", "model")


@dataclass(frozen=True)
class Reference:
    """What an earlier training left in its folder."""

    folder: Path
    curve: Curve
    others: Mapping[str, object] = field(default_factory=dict)
    """Its settings that make it less than comparable, by name: a defence, and what is not as it is here."""

    def after(self, rounds: int) -> tuple[int, float]:
        """Its accuracy after so many rounds or, where it was not tested then, after its last.

        >>> reference = Reference(Path("out/plain"), [(2, 0.25), (4, 0.5)])
        >>> reference.after(2), reference.after(3)
        ((2, 0.25), (4, 0.5))
        """
        return next((point for point in self.curve if point[0] == rounds), self.curve[-1])

    def compared(self, outcome: Outcome) -> str:
        """PMM in a line, with what makes the two less than comparable.

        >>> reference = Reference(Path("out/plain"), [(2, 0.25), (4, 0.5)], {"seed": 1})
        >>> reference.compared(Outcome(0.2, [(2, 0.2)], 1.0))
        'PMM 80.00: of 25.00 % in out/plain after 2 rounds; there seed = 1'
        """
        wanted = outcome.curve[-1][0]
        rounds, accuracy = self.after(wanted)
        kept = outcome.maintenance(accuracy)
        line = f"PMM {kept:.2f}: of {100 * accuracy:.2f} % in {self.folder} after {rounds} rounds"
        if rounds != wanted:
            line += f", as it has no test after {wanted}"
        if self.others:
            line += "; there " + ", ".join(f"{name} = {value!r}" for name, value in self.others.items())
        return line


def read_reference(folder: Path, experiment: Experiment) -> Reference:
    """The training in `folder`, to compare `experiment` with; one of another data set or model is refused.

    >>> read_reference(Path("absent"), Experiment())
    Traceback (most recent call last):
    refiner.errors.DataError: reference = 'absent': no outcome.json of a finished training
    """
    try:
        curve = [(int(rounds), float(score)) for rounds, score in _held(folder / "outcome.json")["curve"]]
        curve[-1]
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(f"reference = {str(folder)!r}: no outcome.json of a finished training") from error
    try:
        there = _held(folder / "settings.json")
        there |= there.pop("training")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"reference = {str(folder)!r}: no settings.json of a training") from error
    here = experiment.settings()
    for name in _SAME:
        if there.get(name) != here[name]:
            raise SettingError(
                f"{name} = {here[name]!r}: the reference in {str(folder)!r} has {there.get(name)!r}"
            )
    plain = here | {"defense": "none"}  # with which a defence is compared
    others = {name: there.get(name) for name, value in plain.items() if there.get(name) != value}
    return Reference(folder, curve, others)


def _held(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))
