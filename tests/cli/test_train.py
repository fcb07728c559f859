"""Tests of `refiner train`."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from refiner.cli import app

SHORT = ["train", "--rounds", "2", "--clients", "2", "--batch", "4", "--evaluate-every", "1"]


def test_training_is_compared_with_a_reference(tmp_path: Path) -> None:
    plain, defended = str(tmp_path / "plain"), str(tmp_path / "defended")
    assert CliRunner().invoke(app, [*SHORT, "--out", plain]).exit_code == 0
    options = ["--out", defended, "--defense", "refiner:iterations=1", "--reference", plain]
    result = CliRunner().invoke(app, [*SHORT, *options])
    assert result.exit_code == 0
    assert "Test accuracy after 2 rounds" in result.output
    assert re.search(rf"^PMM \S+: relative to \S+ % in {plain} after 2 rounds$", result.output, re.MULTILINE)
    other = CliRunner().invoke(app, [*SHORT, *options, "--model", "resnet10"])
    assert other.exit_code == 2
    assert other.output == f"refiner: --model = 'resnet10': the reference in {plain!r} has 'lenet'\n"


def test_finished_training_is_not_overwritten(tmp_path: Path) -> None:
    slow = [*SHORT, "--rounds", "9", "--lr", "1e-12", "--patience", "1", "--out", str(tmp_path)]
    first = CliRunner().invoke(app, slow)
    assert first.exit_code == 0 and "Test accuracy after 2 rounds" in first.output
    rejected = CliRunner().invoke(app, slow)
    assert rejected.exit_code == 2
    assert rejected.output.startswith(f"refiner: --out = '{tmp_path}': contains a training; use --resume")
    assert CliRunner().invoke(app, [*slow, "--resume"]).output == first.output
    (tmp_path / "checkpoint.safetensors").unlink()
    rejected = CliRunner().invoke(app, slow)
    assert rejected.exit_code == 2 and len(rejected.output.splitlines()) == 1
    assert "contains outcome.json and weights.safetensors, but no checkpoint" in rejected.output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--rounds", "0"], "--rounds = 0: expected an integer"),
        (["--clients", "2", "--sampled", "3"], "--sampled = 3: expected an integer in [1, 2]"),
        (["--lr", "0"], "--lr = 0.0: expected a number"),
        (["--data", "nothing"], "--data = 'nothing': unknown"),
        (["--reference", "absent"], "no outcome.json of a finished training"),
        (["--partition", "dirichlet:0"], "expected"),
    ],
)
def test_wrong_options_print_one_line(options: list[str], message: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["train", "--out", str(tmp_path), *options])
    assert result.exit_code == 2
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_images_of_several_sizes_need_a_size(tmp_path: Path) -> None:
    for number in range(10):
        place = tmp_path / "zoo" / "ab"[number % 2] / f"{number}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16 + number, 20, 3), number, np.uint8)).save(place)
    options = [*SHORT, "--data", f"folder:{tmp_path / 'zoo'}", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 2 and "set size to make them equal (--size)" in result.output
    assert CliRunner().invoke(app, [*options, "--size", "16"]).exit_code == 0
    result = CliRunner().invoke(app, [*options, "--size", "20", "--resume"])
    assert result.exit_code == 2 and "made with another size" in result.output
    result = CliRunner().invoke(app, [*SHORT, "--size", "16", "--out", str(tmp_path / "other")])
    assert "--size = 16: only valid with your own data, not with sample" in result.output


def test_labels_of_the_test_split_are_checked_before_training(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 8, 3), np.uint8)
    arrays = {"train_images": pixels, "train_labels": np.arange(8) % 2}
    np.savez(tmp_path / "a.npz", **arrays, test_images=pixels, test_labels=np.arange(8))
    options = [*SHORT, "--data", f"npz:{tmp_path / 'a.npz'}", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, options)
    assert result.exit_code == 2
    assert result.output.endswith("a.npz: test contains the label 7, expected labels in [0, 1] as in train\n")
    assert not (tmp_path / "out").exists()
