"""Experiments described by names: the files that they write, and how they are resumed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from refiner.errors import DataError, RefinerError, SettingError
from refiner.federation import Experiment, FederatedSettings, run_experiment
from refiner.federation.report import write_training_report
from refiner.files import locked

SHORT = Experiment(
    data="sample", evaluate_every=2, training=FederatedSettings(rounds=4, clients=4, batch=8, lr=0.1)
)
LONGER = replace(SHORT, training=replace(SHORT.training, rounds=6))


def test_an_experiment_writes_outcome_settings_and_weights(tmp_path: Path) -> None:
    outcome = run_experiment(SHORT, tmp_path)
    assert [rounds for rounds, _ in outcome.curve] == [2, 4]
    assert json.loads((tmp_path / "outcome.json").read_text())["accuracy"] == outcome.accuracy
    log = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [(row["round"], row["loss"]) for row in log] == outcome.losses
    assert json.loads((tmp_path / "settings.json").read_text())["training"]["lr"] == 0.1
    assert load_file(tmp_path / "weights.safetensors")["head.weight"].shape[0] == 10


def test_a_longer_experiment_resumes_a_shorter_one_to_the_same_bits(tmp_path: Path) -> None:
    uninterrupted = run_experiment(LONGER, tmp_path / "uninterrupted")
    run_experiment(SHORT, tmp_path / "resumed")
    with pytest.raises(DataError, match="contains a training; use --resume to continue it"):
        run_experiment(LONGER, tmp_path / "resumed")
    assert run_experiment(LONGER, tmp_path / "resumed", resume=True).curve == uninterrupted.curve
    expected, resumed = (
        load_file(tmp_path / name / "weights.safetensors") for name in ("uninterrupted", "resumed")
    )
    assert all(torch.equal(expected[key], resumed[key]) for key in expected)


def test_a_rejected_experiment_changes_no_file(tmp_path: Path) -> None:
    run_experiment(SHORT, tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    for settings, message in (
        (replace(SHORT.training, lr=0.5), "lr"),
        (replace(SHORT.training, rounds=2), "rounds = 2: expected 4 or more"),
    ):
        with pytest.raises(DataError, match=message):
            run_experiment(replace(SHORT, training=settings), tmp_path, resume=True)
        assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_an_experiment_that_ended_early_can_be_resumed_but_not_overwritten(tmp_path: Path) -> None:
    """Nothing is learned at this learning rate, so it ends after the third evaluation."""
    slow = replace(SHORT, patience=2, training=replace(SHORT.training, rounds=20, lr=1e-12))
    outcome = run_experiment(slow, tmp_path)
    assert [rounds for rounds, _ in outcome.curve] == [2, 4, 6]
    weights = (tmp_path / "weights.safetensors").read_bytes()
    with pytest.raises(DataError, match="contains a training; use --resume to continue it"):
        run_experiment(slow, tmp_path)
    again = run_experiment(slow, tmp_path, resume=True)
    assert (again.curve, again.accuracy) == (outcome.curve, outcome.accuracy)
    assert (tmp_path / "weights.safetensors").read_bytes() == weights


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
    reason = f"contains {' and '.join(names)}, but no checkpoint to resume from; use another folder"
    assert str(caught.value) == f"out = {str(tmp_path)!r}: {reason}"
    assert (caught.value.field, caught.value.value) == ("out", str(tmp_path))
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == dict.fromkeys(names, "{}")


def test_a_checkpoint_from_before_the_size_setting_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Experiment.fixed_settings
    with monkeypatch.context() as patch:
        patch.setattr(
            Experiment, "fixed_settings", lambda e: {k: v for k, v in original(e).items() if k != "size"}
        )
        run_experiment(SHORT, tmp_path)
    assert original(LONGER)["size"] is None
    assert run_experiment(LONGER, tmp_path, resume=True).curve[-1][0] == 6


def test_a_missing_log_is_tolerated_and_an_outdated_one_is_replaced(tmp_path: Path) -> None:
    outcome = run_experiment(SHORT, tmp_path)
    log = tmp_path / "log.jsonl"
    log.unlink()
    again = run_experiment(SHORT, tmp_path, resume=True)
    assert again.curve == outcome.curve[-1:] and again.accuracy == outcome.accuracy
    log.write_text('{"round": 2, "accuracy": 0.5}\n')
    for name in ("checkpoint.safetensors", "weights.safetensors", "outcome.json"):
        (tmp_path / name).unlink()
    assert run_experiment(SHORT, tmp_path).curve == outcome.curve
    assert len(log.read_text().splitlines()) == len(outcome.curve)


def test_a_log_that_cannot_be_written_raises(tmp_path: Path) -> None:
    def block_log(rounds: int, score: float | None) -> None:
        if rounds == 1:
            (tmp_path / "log.jsonl").mkdir()

    with pytest.raises(DataError, match=r"log.jsonl: can't be written \("):
        run_experiment(SHORT, tmp_path, on_round=block_log)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "cifr10"}, "did you mean 'cifar10'"),
        ({"model": "lenett"}, "model = 'lenett': "),
        ({"defense": "refinr"}, "did you mean 'refiner'"),
        ({"partition": "dirichlt"}, "did you mean 'dirichlet'"),
        ({"server": "fedprox"}, "server = 'fedprox': unknown"),
        ({"evaluate_every": 0}, "evaluate_every = 0: expected"),
    ],
)
def test_an_unknown_name_raises_before_anything_is_written(
    change: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RefinerError, match=message):
        run_experiment(replace(SHORT, **change), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_more_clients_than_samples_raises(tmp_path: Path) -> None:
    experiment = replace(SHORT, training=FederatedSettings(rounds=1, clients=500))
    with pytest.raises((DataError, SettingError), match="clients"):
        run_experiment(experiment, tmp_path)


@pytest.mark.hostile
def test_two_trainings_do_not_write_to_one_folder(tmp_path: Path) -> None:
    with locked(tmp_path, ValueError()), pytest.raises(DataError) as caught:
        run_experiment(Experiment(data="sample", training=FederatedSettings(rounds=1, clients=1)), tmp_path)
    assert str(caught.value) == f"out = '{tmp_path}': another training is writing to it"


def test_a_log_from_before_losses_were_logged_is_continued(tmp_path: Path) -> None:
    run_experiment(SHORT, tmp_path)
    log = tmp_path / "log.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps({"round": r["round"], "accuracy": r["accuracy"]}) + "\n" for r in rows))
    done = run_experiment(SHORT, tmp_path, resume=True)
    assert done.losses == [] and [rounds for rounds, _ in done.curve] == [2, 4]
    longer = run_experiment(LONGER, tmp_path, resume=True)
    assert [rounds for rounds, _ in longer.curve] == [2, 4, 6]
    assert [rounds for rounds, _ in longer.losses] == [6]
    for folder, outcome in ((tmp_path / "old", done), (tmp_path / "new", longer)):
        folder.mkdir()
        html = write_training_report(folder, LONGER, outcome).read_text(encoding="utf-8")
        assert ("Test loss" in html) == bool(outcome.losses)
