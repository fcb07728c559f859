"""`refiner train` as a user types it."""

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
    assert "right after 2 rounds" in result.output and "PMM" in result.output


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
