"""Another training to compare with: what is refused, which of its tests counts, and what is said of it."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from refiner.errors import DataError, SettingError
from refiner.federation import Experiment, Outcome, Training, run_experiment
from refiner.federation.reference import read_reference

HERE = Experiment(data="sample", defense="refiner", training=Training(rounds=4, clients=4, batch=8))
CURVE = [(2, 0.25), (4, 0.5), (6, 0.8)]


def left(folder: Path, **changes: Any) -> Path:
    """What an undefended training of 6 rounds leaves that is told in words and numbers."""
    training = replace(HERE.training, rounds=6, **changes.pop("training", {}))
    experiment = replace(HERE, defense="none", training=training)
    (folder / "settings.json").write_text(json.dumps(asdict(replace(experiment, **changes))))
    (folder / "outcome.json").write_text(json.dumps(asdict(Outcome(CURVE[-1][1], CURVE, 1.0))))
    return folder


def ended(rounds: int) -> Outcome:
    return Outcome(0.4, [(rounds, 0.4)], 1.0)


def test_of_a_real_training(tmp_path: Path) -> None:
    plain = replace(HERE, defense="none", evaluate_every=2)
    outcome = run_experiment(plain, tmp_path)
    reference = read_reference(tmp_path, HERE)
    assert (reference.curve, reference.others) == (outcome.curve, {})
    assert reference.compared(outcome).startswith("PMM 100.00: of ")


@pytest.mark.parametrize(
    ("field", "there", "here"), [("data", "cifar10", "sample"), ("model", "resnet10", "lenet")]
)
def test_another_data_set_or_model_is_refused(field: str, there: str, here: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError) as caught:
        read_reference(left(tmp_path, **{field: there}), HERE)
    assert str(caught.value) == f"{field} = {here!r}: the reference in {str(tmp_path)!r} has {there!r}"


def test_its_accuracy_after_as_many_rounds(tmp_path: Path) -> None:
    reference = read_reference(left(tmp_path), HERE)
    assert reference.compared(ended(4)) == f"PMM 80.00: of 50.00 % in {tmp_path} after 4 rounds"
    assert reference.compared(ended(6)) == f"PMM 50.00: of 80.00 % in {tmp_path} after 6 rounds"


@pytest.mark.parametrize("rounds", [1, 3, 8])
def test_where_it_has_no_test_after_as_many_rounds(rounds: int, tmp_path: Path) -> None:
    told = read_reference(left(tmp_path), HERE).compared(ended(rounds))
    assert told == f"PMM 50.00: of 80.00 % in {tmp_path} after 6 rounds, as it has no test after {rounds}"


def test_what_else_is_not_the_same_is_said(tmp_path: Path) -> None:
    changes = {"seed": 1, "clients": 2}
    there = left(tmp_path, partition="dirichlet:0.5", defense="pruning:rate=0.5", training=changes)
    told = read_reference(there, HERE).compared(ended(4))
    assert told.startswith(f"PMM 80.00: of 50.00 % in {tmp_path} after 4 rounds; there ")
    said = told.partition("; there ")[2].split(", ")
    assert sorted(said) == [
        "clients = 2",
        "defense = 'pruning:rate=0.5'",
        "partition = 'dirichlet:0.5'",
        "seed = 1",
    ]


@pytest.mark.parametrize("name", ["settings.json", "outcome.json"])
@pytest.mark.parametrize("text", [None, "", "[]", "{", '{"curve": []}', '{"curve": 1, "training": 1}'])
def test_files_that_are_not_there_or_of_something_else(name: str, text: str | None, tmp_path: Path) -> None:
    left(tmp_path)
    (tmp_path / name).unlink() if text is None else (tmp_path / name).write_text(text)
    with pytest.raises(DataError, match=f"^reference = '{tmp_path}': no {name} of a "):
        read_reference(tmp_path, HERE)
