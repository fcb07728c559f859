"""An experiment by names: what it leaves in its folder, and that it goes on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from refiner.errors import DataError, RefinerError, SettingError
from refiner.federation import Experiment, Training, run_experiment

SHORT = Experiment(data="sample", evaluate_every=2, training=Training(rounds=4, clients=4, batch=8, lr=0.1))


def test_what_is_left(tmp_path: Path) -> None:
    outcome = run_experiment(SHORT, tmp_path)
    assert [rounds for rounds, _ in outcome.curve] == [2, 4]
    assert json.loads((tmp_path / "outcome.json").read_text())["accuracy"] == outcome.accuracy
    assert json.loads((tmp_path / "settings.json").read_text())["training"]["lr"] == 0.1
    assert load_file(tmp_path / "weights.safetensors")["head.weight"].shape[0] == 10


def test_a_longer_one_goes_on_from_a_shorter_one(tmp_path: Path) -> None:
    longer = replace(SHORT, training=replace(SHORT.training, rounds=6))
    whole = run_experiment(longer, tmp_path / "whole")
    run_experiment(SHORT, tmp_path / "parts")
    with pytest.raises(DataError, match="holds a training; use --resume to go on"):
        run_experiment(longer, tmp_path / "parts")
    assert run_experiment(longer, tmp_path / "parts", resume=True).curve == whole.curve
    one, other = (load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_refused_one_changes_nothing(tmp_path: Path) -> None:
    run_experiment(SHORT, tmp_path)
    held = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for other, told in (
        (replace(SHORT.training, lr=0.5), "made with another"),
        (replace(SHORT.training, rounds=2), "rounds = 2: expected 4 or more"),
    ):
        with pytest.raises(DataError, match=told):
            run_experiment(replace(SHORT, training=other), tmp_path, resume=True)
        assert {file: file.read_bytes() for file in tmp_path.iterdir()} == held


def test_one_that_ended_early_is_kept(tmp_path: Path) -> None:
    """Nothing is learned at such a rate, so that the third test is the last."""
    slow = replace(SHORT, patience=2, training=replace(SHORT.training, rounds=20, lr=1e-12))
    outcome = run_experiment(slow, tmp_path)
    assert [rounds for rounds, _ in outcome.curve] == [2, 4, 6]
    held = (tmp_path / "weights.safetensors").read_bytes()
    with pytest.raises(DataError, match="holds a training; use --resume to go on"):
        run_experiment(slow, tmp_path)
    again = run_experiment(slow, tmp_path, resume=True)
    assert (again.curve, again.accuracy) == (outcome.curve, outcome.accuracy)
    assert (tmp_path / "weights.safetensors").read_bytes() == held


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    "names", [["outcome.json"], ["weights.safetensors"], ["outcome.json", "weights.safetensors"]]
)
def test_results_without_a_checkpoint_are_not_overwritten(
    names: list[str], resume: bool, tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).write_text("{}")
    with pytest.raises(DataError) as caught:
        run_experiment(SHORT, tmp_path, resume=resume)
    told = f"holds {' and '.join(names)}, but no checkpoint to go on from; use another folder"
    assert str(caught.value) == f"out = {str(tmp_path)!r}: {told}"
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == dict.fromkeys(names, "{}")


def test_a_training_from_before_there_was_a_size_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Experiment.settings
    with monkeypatch.context() as patch:
        patch.setattr(Experiment, "settings", lambda e: {k: v for k, v in own(e).items() if k != "size"})
        run_experiment(SHORT, tmp_path)
    longer = replace(SHORT, training=replace(SHORT.training, rounds=6))
    assert own(longer)["size"] is None
    assert run_experiment(longer, tmp_path, resume=True).curve[-1][0] == 6


def test_a_log_that_is_lost_or_older_than_the_training(tmp_path: Path) -> None:
    outcome = run_experiment(SHORT, tmp_path)
    log = tmp_path / "log.jsonl"
    log.unlink()
    again = run_experiment(SHORT, tmp_path, resume=True)
    assert again.curve == outcome.curve[-1:] and again.accuracy == outcome.accuracy
    log.write_text('{"round": 2, "accuracy": 0.5}\n')
    for left in ("checkpoint", "weights"):
        (tmp_path / f"{left}.safetensors").unlink()
    (tmp_path / "outcome.json").unlink()
    assert run_experiment(SHORT, tmp_path).curve == outcome.curve
    assert len(log.read_text().splitlines()) == len(outcome.curve)


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    def block(rounds: int, score: float | None) -> None:
        if rounds == 1:
            (tmp_path / "log.jsonl").mkdir()

    with pytest.raises(DataError, match=r"log.jsonl: can't be written \("):
        run_experiment(SHORT, tmp_path, on_round=block)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"data": "cifr10"}, "did you mean 'cifar10'"),
        ({"model": "lenett"}, "model = 'lenett': expected one of"),
        ({"defense": "refinr"}, "did you mean 'refiner'"),
        ({"partition": "dirichlt"}, "did you mean 'dirichlet'"),
        ({"server": "fedprox"}, "server = 'fedprox': unknown"),
        ({"evaluate_every": 0}, "evaluate_every = 0: expected"),
    ],
)
def test_wrong_names_leave_nothing(change: dict[str, object], told: str, tmp_path: Path) -> None:
    with pytest.raises(RefinerError, match=told):
        run_experiment(replace(SHORT, **change), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_more_clients_than_samples(tmp_path: Path) -> None:
    many = replace(SHORT, training=Training(rounds=1, clients=500))
    with pytest.raises((DataError, SettingError), match="clients"):
        run_experiment(many, tmp_path)
