"""The command line as a user meets it: the main job, the evaluation network, and errors of one line."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from refiner import __version__
from refiner.cli import app
from refiner.data import load_sample, write_sheet


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.output
    return result


def test_refine_prints_a_table_and_writes_a_page(tmp_path: Path) -> None:
    told = run("refine", "--limit", "10", "--iterations", "1", "--seed", "0", "--out", str(tmp_path)).stdout
    for word in ("noise ratio", "relative", "paper"):
        assert word in told
    page = (tmp_path / "index.html").read_text(encoding="utf-8")
    assert page.count("data:image/png") >= 30
    assert "airplane" in page
    assert not re.search(r"(src|href)=.?http|url\(.?http|@import", page)


def test_score_reads_clean_and_noisy_images(tmp_path: Path) -> None:
    clean, noisy = tmp_path / "clean.png", tmp_path / "noisy.png"
    write_sheet(clean, (load_sample().images[:1] * 255).byte(), columns=1)
    Image.effect_noise((32, 32), 100).convert("RGB").save(noisy)
    lines = run("evalnet", "score", str(clean), str(noisy)).stdout.strip().splitlines()
    assert float(lines[0].split()[0]) < 0.1
    assert float(lines[1].split()[0]) > 0.4


def test_train_writes_weights_that_score_takes(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    for i, image in enumerate((load_sample().images[:4] * 255).byte()):
        write_sheet(folder / f"{i}.png", image[None], columns=1)
    weights = tmp_path / "d.safetensors"
    run("evalnet", "train", "--data", str(folder), "--out", str(weights), "--epochs", "1", "--half")
    assert weights.stat().st_size < 3_200_000
    assert not list(tmp_path.glob("*.part"))
    run("evalnet", "score", str(folder / "0.png"), "--weights", str(weights))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("refine", "--model", "lenet5"), "model = 'lenet5': expected one of"),
        (("refine", "--data", "absent.png"), "absent.png"),
        (("refine", "--iterations", "-1"), "iterations = -1: expected an integer in"),
        (("refine", "--device", "tpu"), "device = 'tpu': expected cpu or cuda"),
        (("evalnet", "score", "absent.png"), "absent.png"),
        (("evalnet", "train", "--data", "absent", "--out", "x", "--epochs", "0"), "epochs = 0"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], told: str, tmp_path: Path) -> None:
    error = run(*words, *(("--out", str(tmp_path)) if words[0] == "refine" else ()), code=2).stderr
    assert told in error
    assert error.startswith("refiner: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("audit", "--victims", "x"), "invalid value for '--victims': 'x' is not a valid integer (audit)"),
        (("train", "--lr", "a"), "invalid value for '--lr': 'a' is not a valid float (train)"),
        (("refine", "--limit", "0"), "invalid value for '--limit': 0 is not in the range x>=1 (refine)"),
        (("audit", "--batch"), "option '--batch' requires an argument (audit)"),
        (("gan", "sample", "--each"), "option '--each' requires an argument (gan sample)"),
        (("gan", "sample"), "missing option '--out' (gan sample)"),
        (("evalnet", "score"), "missing argument 'PICTURES...' (evalnet score)"),
        (("data", "partition", "sample", "--nope"), "no such option"),
        (("data", "gett"), "no such command 'gett'. Did you mean 'get'? (data)"),
        (("defenses", "--x=1"), "no such option"),
        (("identity", "extra", "more", "most"), "got unexpected extra argument"),
        (("nope",), "no such command 'nope' ()"),
        (("--nope",), "no such option"),
    ],
)
def test_a_wrong_use_is_one_line(words: tuple[str, ...], told: str) -> None:
    found = run(*words, code=2)
    assert found.stderr.count("\n") == 1 and not found.stdout
    text, _, command = told.partition(" (")
    assert found.stderr.startswith(f"refiner: {text}")
    if command:
        see = " ".join(["refiner", *command.strip(")").split(), "--help"])
        assert found.stderr == f"refiner: {text} (see {see})\n"


@pytest.mark.parametrize("words", [(), ("data",), ("gan",)])
def test_no_command_is_help(words: tuple[str, ...]) -> None:
    found = run(*words, code=2)
    assert "Usage: " in found.output and "Commands" in found.output and "refiner: " not in found.output


def test_version() -> None:
    assert run("--version").stdout.strip() == f"refiner {__version__}"


def test_a_process_of_its_own(tmp_path: Path) -> None:
    """What the shell is told: an exit code, one line, nothing else, whatever importing it all may print."""
    words = ("refine", "--data", "absent.png", "--out", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "refiner", *words], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 2
    assert done.stderr == run(*words, code=2).stderr
    assert not done.stdout
