"""Reference trainings: which can be compared, which accuracy is used, and what the comparison reports."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from refiner.errors import DataError, SettingError
from refiner.federation import Experiment, FederatedSettings, Outcome, run_experiment
from refiner.federation.reference import Comparison, Reference, read_reference

EXPERIMENT = Experiment(
    data="sample", defense="refiner", training=FederatedSettings(rounds=4, clients=4, batch=8)
)
CURVE = [(2, 0.25), (4, 0.5), (6, 0.8)]


def write_reference(folder: Path, **changes: Any) -> Path:
    """Write settings and outcome of an undefended training of 6 rounds, without training."""
    settings = replace(EXPERIMENT.training, rounds=6, **changes.pop("training", {}))
    experiment = replace(EXPERIMENT, defense="none", training=settings)
    (folder / "settings.json").write_text(json.dumps(asdict(replace(experiment, **changes))))
    (folder / "outcome.json").write_text(json.dumps(asdict(Outcome(CURVE[-1][1], CURVE, 1.0))))
    return folder


def outcome_after(rounds: int) -> Outcome:
    return Outcome(0.4, [(rounds, 0.4)], 1.0)


def test_a_training_compared_with_itself_has_pmm_100(tmp_path: Path) -> None:
    outcome = run_experiment(replace(EXPERIMENT, defense="none", evaluate_every=2), tmp_path)
    reference = read_reference(tmp_path, EXPERIMENT)
    assert (reference.curve, reference.differences) == (outcome.curve, {})
    assert reference.describe(outcome).startswith("PMM 100.0 % (")


@pytest.mark.parametrize(
    ("field", "reference_value", "value"), [("data", "cifar10", "sample"), ("model", "resnet10", "lenet")]
)
def test_a_reference_with_another_dataset_or_model_raises(
    field: str, reference_value: str, value: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingError) as caught:
        read_reference(write_reference(tmp_path, **{field: reference_value}), EXPERIMENT)
    assert (
        str(caught.value)
        == f"{field} = {value!r}: the reference in {str(tmp_path)!r} has {reference_value!r}"
    )
    assert (caught.value.field, caught.value.value, caught.value.expected) == (
        field,
        value,
        repr(reference_value),
    )


def test_the_accuracy_after_the_same_number_of_rounds_is_used(tmp_path: Path) -> None:
    reference = read_reference(write_reference(tmp_path), EXPERIMENT)
    assert reference.describe(outcome_after(4)) == "PMM 80.0 % (40.0 of 50.0 % after 4 rounds)"
    assert reference.describe(outcome_after(6)) == "PMM 50.0 % (40.0 of 80.0 % after 6 rounds)"
    line = Reference(tmp_path, [(8000, 0.525)]).describe(Outcome(0.503, [(8000, 0.503)], 1.0))
    assert line == "PMM 95.8 % (50.3 of 52.5 % after 8,000 rounds)"


@pytest.mark.parametrize("rounds", [5, 8])
def test_trainings_are_compared_after_the_last_rounds_that_both_have(rounds: int, tmp_path: Path) -> None:
    reference = read_reference(write_reference(tmp_path), EXPERIMENT)
    outcome = Outcome(0.4, [(2, 0.2), (3, 0.1), (4, 0.3), (rounds, 0.4)], 1.0)
    assert reference.compare(outcome) == Comparison(4, 0.3, 0.5)
    after = "after 4 rounds, the most after which both were evaluated"
    assert reference.describe(outcome) == f"PMM 60.0 % (30.0 of 50.0 % {after})"


def test_trainings_that_were_never_evaluated_after_equal_rounds_have_no_pmm(tmp_path: Path) -> None:
    reference = read_reference(write_reference(tmp_path), EXPERIMENT)
    assert reference.compare(outcome_after(3)) is None
    line = f"no PMM: {tmp_path} was not evaluated after the same number of rounds"
    assert reference.describe(outcome_after(3)) == line


def test_differing_settings_are_listed(tmp_path: Path) -> None:
    changes = {"seed": 1, "clients": 2}
    folder = write_reference(
        tmp_path, partition="dirichlet:0.5", defense="pruning:rate=0.5", training=changes
    )
    line = read_reference(folder, EXPERIMENT).describe(outcome_after(4))
    comparison, _, differences = line.partition("; the reference has ")
    assert comparison == "PMM 80.0 % (40.0 of 50.0 % after 4 rounds)"
    assert sorted(differences.split(", ")) == [
        "clients = 2",
        "defense = 'pruning:rate=0.5'",
        "partition = 'dirichlet:0.5'",
        "seed = 1",
    ]


@pytest.mark.parametrize("name", ["settings.json", "outcome.json"])
@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"curve": []}', '{"curve": 1, "training": 1}'])
def test_a_missing_or_malformed_file_raises(name: str, text: str | None, tmp_path: Path) -> None:
    write_reference(tmp_path)
    (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"^reference = '{tmp_path}': no {name} of a "):
        read_reference(tmp_path, EXPERIMENT)
