"""Tests of the PMM of several trainings, and of the report that shows it."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refiner.cli import app
from refiner.errors import DataError, SettingError
from refiner.federation import Experiment, Outcome
from refiner.federation.pmm import pmm_of_trainings


def training(folder: Path, defense: str, *curve: tuple[int, float], model: str = "lenet") -> Path:
    """A folder like that of a finished training."""
    folder.mkdir()
    experiment, outcome = Experiment(defense=defense, model=model), Outcome(curve[-1][1], list(curve), 1.0)
    for name, record in (("settings", experiment), ("outcome", outcome)):
        (folder / f"{name}.json").write_text(json.dumps(asdict(record)), encoding="utf-8")
    return folder


def test_pmm_is_relative_to_the_undefended_training(tmp_path: Path) -> None:
    plain = training(tmp_path / "plain", "none", (10, 0.4), (20, 0.5))
    pruned = training(tmp_path / "pruned", "pruning:rate=0.9", (20, 0.4))
    apart = training(tmp_path / "apart", "refiner", (15, 0.4))
    assert pmm_of_trainings([pruned, plain, apart]) == {"none": 100.0, "pruning:rate=0.9": 80.0}


def test_wrong_trainings_are_one_line(tmp_path: Path) -> None:
    plain = training(tmp_path / "plain", "none", (10, 0.4))
    with pytest.raises(DataError, match="training: 0 trainings without a defence, expected one"):
        pmm_of_trainings([training(tmp_path / "pruned", "pruning", (10, 0.4))], "training")
    with pytest.raises(SettingError, match="model = 'vit'"):
        pmm_of_trainings([plain, training(tmp_path / "other", "refiner", (10, 0.4), model="vit")])
    (plain / "outcome.json").write_text("[]", encoding="utf-8")
    with pytest.raises(DataError, match="no finished training"):
        pmm_of_trainings([plain])


def test_audit_shows_the_pmm_of_its_defences(tmp_path: Path) -> None:
    """Equal settings are the same defence, however they are written."""
    plain = training(tmp_path / "plain", "none", (10, 0.5))
    pruned = training(tmp_path / "pruned", "pruning:rate=9e-1", (10, 0.4))
    options = ["--victims", "1", "--attack", "inverting:iterations=1", "--model", "mlp:hidden=4"]
    options += ["--defense", "pruning:rate=0.90", "--data", "sample", "--out", str(tmp_path / "out")]
    folders = ["--training", str(plain), "--training", str(pruned)]
    run = CliRunner().invoke(app, ["audit", *options, *folders, "--json", "--quiet"])
    assert run.exit_code == 0, run.output
    (pmm,) = json.loads(run.stdout)["pmm"].values()
    assert pmm == 80.0
    assert re.search(r">80\.0 %</td>", (tmp_path / "out" / "report.html").read_text(encoding="utf-8"))
    missing = CliRunner().invoke(app, ["audit", *options, "--training", str(tmp_path / "absent")])
    assert missing.exit_code == 2 and "no finished training" in missing.output
