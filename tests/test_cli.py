"""Tests of the command line: refine, the evaluation network, and one-line errors."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from refiner import __version__
from refiner.cli import app
from refiner.data import load_sample, write_image_grid


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return result


def test_refine_prints_a_table_and_writes_a_page(tmp_path: Path) -> None:
    output = run("refine", "--limit", "10", "--iterations", "1", "--seed", "0", "--out", str(tmp_path)).stdout
    for word in ("noise ratio", "relative", "paper"):
        assert word in output
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") >= 30
    assert "airplane" in page
    assert not re.search(r"(src|href)=.?http|url\(.?http|@import", page)


def test_score_separates_clean_and_noisy_images(tmp_path: Path) -> None:
    clean, noisy = tmp_path / "clean.png", tmp_path / "noisy.png"
    write_image_grid(clean, (load_sample().images[:1] * 255).byte(), columns=1)
    Image.effect_noise((32, 32), 100).convert("RGB").save(noisy)
    lines = run("evalnet", "score", str(clean), str(noisy)).stdout.strip().splitlines()
    assert float(lines[0].split()[0]) < 0.1
    assert float(lines[1].split()[0]) > 0.4


@pytest.mark.processes
def test_trained_weights_can_be_used_to_score(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for i, image in enumerate((load_sample().images[:4] * 255).byte()):
        write_image_grid(folder / f"{i}.png", image[None], columns=1)
    weights = tmp_path / "d.safetensors"
    options = ("--data", str(folder), "--out", str(weights), "--epochs", "1", "--half", "--json")
    assert json.loads(run("evalnet", "train", *options).stdout) == {"weights": str(weights), "images": 4}
    assert weights.stat().st_size < 3_200_000
    assert not list(tmp_path.glob("*.part"))
    run("evalnet", "score", str(folder / "0.png"), "--weights", str(weights))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("refine", "--model", "lenet5"), "--model = 'lenet5': unknown; did you mean 'lenet'?"),
        (("refine", "--data", "absent.png"), "absent.png"),
        (("refine", "--iterations", "-1"), "iterations = -1: expected an integer in"),
        (("refine", "--device", "tpu"), "device = 'tpu': expected cpu or cuda"),
        (("evalnet", "score", "absent.png"), "absent.png"),
        (("evalnet", "train", "--data", "absent", "--out", "x", "--epochs", "0"), "epochs = 0"),
    ],
)
def test_wrong_arguments_print_one_line(words: tuple[str, ...], message: str, tmp_path: Path) -> None:
    error = run(*words, *(("--out", str(tmp_path)) if words[0] == "refine" else ()), code=2).stderr
    assert message in error
    assert error.startswith("refiner: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("audit", "--victims", "x"), "invalid value for '--victims': 'x' is not a valid integer (audit)"),
        (("train", "--lr", "a"), "invalid value for '--lr': 'a' is not a valid float (train)"),
        (("refine", "--limit", "0"), "invalid value for '--limit': 0 is not in the range x>=1 (refine)"),
        (("audit", "--batch"), "option '--batch' requires an argument (audit)"),
        (("gan", "sample", "--each"), "option '--each' requires an argument (gan sample)"),
        (("gan", "sample"), "missing option '--out' (gan sample)"),
        (("evalnet", "score"), "missing argument 'IMAGES...' (evalnet score)"),
        (("data", "partition", "sample", "--nope"), "no such option"),
        (("data", "fetc"), "no such command 'fetc'. Did you mean 'fetch'? (data)"),
        (("defenses", "--x=1"), "no such option"),
        (("identity", "extra", "more", "most"), "got unexpected extra argument"),
        (("unknown",), "no such command 'unknown' ()"),
        (("--nope",), "no such option"),
    ],
)
def test_wrong_usage_prints_one_line(words: tuple[str, ...], message: str) -> None:
    result = run(*words, code=2)
    assert result.stderr.count("\n") == 1 and not result.stdout
    text, _, command = message.partition(" (")
    assert result.stderr.startswith(f"refiner: {text}")
    if command:
        help_command = " ".join(["refiner", *command.strip(")").split(), "--help"])
        assert result.stderr == f"refiner: {text} (see {help_command})\n"


@pytest.mark.parametrize("words", [(), ("data",), ("gan",)])
def test_no_command_shows_help(words: tuple[str, ...]) -> None:
    result = run(*words, code=2)
    assert "Usage: " in result.output and "Commands" in result.output and "refiner: " not in result.output


def test_version_is_printed() -> None:
    assert run("--version").stdout.strip() == f"refiner {__version__}"


@pytest.mark.processes
def test_error_in_a_separate_process(tmp_path: Path) -> None:
    """The exit code is 2 and the error is the only output, whatever imports may print."""
    words = ("refine", "--data", "absent.png", "--out", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "refiner", *words], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 2
    assert done.stderr == run(*words, code=2).stderr
    assert not done.stdout


@pytest.mark.hostile
def test_file_names_do_not_control_the_terminal_and_long_ones_are_one_line(tmp_path: Path) -> None:
    escape = run("refine", "--data", str(tmp_path / "a\x1b[2Jb"), code=2)
    assert "\x1b" not in escape.output and "a?[2Jb" in escape.output
    long = run("refine", "--data", str(tmp_path / ("a" * 300)), code=2)
    assert long.output.count("\n") == 1 and "no such file or folder" in long.output
