"""PMM of several finished trainings, for a report that compares defences."""

import json
from collections.abc import Sequence
from pathlib import Path

from refiner.defenses import NoDefense, make_defense
from refiner.errors import DataError
from refiner.federation.experiment import Experiment, Outcome
from refiner.federation.federated_settings import FederatedSettings
from refiner.federation.reference import read_reference


def pmm_of_trainings(folders: Sequence[Path], field: str = "folders") -> dict[str, float]:
    """Return the PMM of every defended training, relative to the undefended one among them.

    Args:
        folders: The output folders of finished trainings of the same data and model, one of them without a
            defence.
        field: What to call them in an error.

    Returns:
        PMM in per cent, by the defence as it was given to the training; trainings that were never evaluated
        after the same rounds as the undefended one are left out.

    Raises:
        DataError: if a folder does not hold a finished training, or not exactly one of them is undefended.
        SettingError: if data or model differ.

    >>> pmm_of_trainings([Path("absent")])
    Traceback (most recent call last):
    refiner.errors.DataError: folders = 'absent': no finished training
    """
    trainings = [(folder, *_read_training(folder, field)) for folder in folders]
    plain = [folder for folder, experiment, _ in trainings if _is_undefended(experiment)]
    if len(plain) != 1:
        raise DataError(
            f"{field}: {len(plain)} trainings without a defence, expected one, to compare the others with",
            field=field,
        )
    found = {}
    for _, experiment, outcome in trainings:
        compared = read_reference(plain[0], experiment).compare(outcome)
        if compared is not None:
            found[experiment.defense] = compared.pmm
    return found


def _is_undefended(experiment: Experiment) -> bool:
    return isinstance(make_defense(experiment.defense), NoDefense)


def _read_training(folder: Path, field: str) -> tuple[Experiment, Outcome]:
    try:
        settings, outcome = (
            dict(json.loads((folder / name).read_text(encoding="utf-8")))
            for name in ("settings.json", "outcome.json")
        )
        training = FederatedSettings(**settings.pop("training"))
        curve = [(int(rounds), float(score)) for rounds, score in outcome["curve"]]
        last = curve[-1][1]
        return Experiment(**settings, training=training), Outcome(last, curve, float(outcome["seconds"]))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise DataError(
            field=field,
            value=str(folder),
            expected="the output folder of a finished training",
            problem="no finished training",
        ) from error
