"""`refiner train` as a user types it."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refiner.cli import app

SHORT = ["train", "--rounds", "2", "--clients", "2", "--batch", "4", "--evaluate-every", "1"]


def test_trains_and_compares(tmp_path: Path) -> None:
    plain, defended = str(tmp_path / "plain"), str(tmp_path / "defended")
    assert CliRunner().invoke(app, [*SHORT, "--out", plain]).exit_code == 0
    wanted = ["--out", defended, "--defense", "refiner:iterations=1", "--reference", plain]
    result = CliRunner().invoke(app, [*SHORT, *wanted])
    assert result.exit_code == 0
    assert "right after 2 rounds" in result.output
    assert re.search(rf"^PMM \S+: of \S+ % in {plain} after 2 rounds$", result.output, re.MULTILINE)
    other = CliRunner().invoke(app, [*SHORT, *wanted, "--model", "resnet10"])
    assert other.exit_code == 2
    assert other.output == f"refiner: --model = 'resnet10': the reference in {plain!r} has 'lenet'\n"


def test_what_ended_early_is_not_overwritten(tmp_path: Path) -> None:
    slow = [*SHORT, "--rounds", "9", "--lr", "1e-12", "--patience", "1", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, slow)
    assert first.exit_code == 0 and "right after 2 rounds" in first.output
    refused = CliRunner().invoke(app, slow)
    assert refused.exit_code == 2
    assert refused.output.startswith(f"refiner: --out = '{tmp_path}': holds a training; use --resume")
    assert CliRunner().invoke(app, [*slow, "--resume"]).output == first.output
    (tmp_path / "checkpoint.safetensors").unlink()
    refused = CliRunner().invoke(app, slow)
    assert refused.exit_code == 2 and len(refused.output.splitlines()) == 1
    assert "holds outcome.json and weights.safetensors, but no checkpoint" in refused.output


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--rounds", "0"], "--rounds = 0: expected an integer"),
        (["--clients", "2", "--sampled", "3"], "--sampled = 3: expected an integer in [1, 2]"),
        (["--lr", "0"], "--lr = 0.0: expected a number"),
        (["--data", "nothing"], "--data = 'nothing': unknown"),
        (["--reference", "absent"], "no outcome.json of a finished training"),
        (["--partition", "dirichlet:0"], "expected"),
    ],
)
def test_wrong_options(options: list[str], told: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "--out", str(tmp_path), *options])
    assert result.exit_code == 2
    assert told in result.output
    assert len(result.output.strip().splitlines()) == 1
