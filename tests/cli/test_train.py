"""Tests of `refiner train`."""

import os
import re
import shlex
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from refiner.cli import app
from refiner.cli.interrupt import stop_on_interrupt

SHORT = ["train", "--rounds", "2", "--clients", "2", "--batch", "4", "--evaluate-every", "1"]


def test_training_is_compared_with_a_reference(tmp_path: Path) -> None:
    plain, defended = str(tmp_path / "plain"), str(tmp_path / "defended")
    assert CliRunner().invoke(app, [*SHORT, "--out", plain]).exit_code == 0
    options = ["--out", defended, "--defense", "refiner:iterations=1", "--reference", plain]
    result = CliRunner().invoke(app, [*SHORT, *options])
    assert result.exit_code == 0
    assert "Test accuracy after 2 rounds" in result.output
    assert re.search(r"^PMM \S+ % \(\S+ of \S+ % after 2 rounds\)$", result.output, re.MULTILINE)
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


def test_resuming_nothing_is_a_one_line_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*SHORT, "--resume", "--out", str(tmp_path)])
    assert result.exit_code == 2 and not list(tmp_path.iterdir())
    assert result.output == f"refiner: --out = '{tmp_path}': has no checkpoint to resume from\n"


def test_a_batch_larger_than_the_data_of_clients_is_noted(tmp_path: Path) -> None:
    words = [*SHORT, "--batch", "128", "--rounds", "1", "--quiet", "--out", str(tmp_path)]
    reason = "have fewer samples than a batch of 128 and use all of them in every step (the fewest: 80)"
    assert CliRunner().invoke(app, words).stderr == f"refiner: note: 2 of 2 clients {reason}\n"


def test_ctrl_c_saves_a_checkpoint_and_prints_the_command_that_continues(tmp_path: Path) -> None:
    """The continued training ends with the bits of an uninterrupted one."""
    out, whole = tmp_path / "my training", tmp_path / "whole"
    words = [*SHORT, "--rounds", "100000", "--lr", "0.05", "--checkpoint-every", "90000", "--out", str(out)]

    def press() -> None:
        end = time.monotonic() + 60
        while not (out / "log.jsonl").exists() and time.monotonic() < end:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=press)
    thread.start()
    result = CliRunner().invoke(app, words)
    thread.join()
    assert result.exit_code == 130 and not result.stdout and result.stderr.count("\n") == 1
    assert signal.getsignal(signal.SIGINT) is before
    match = re.fullmatch(
        r"refiner: stopped after ([\d,]+) rounds; to continue: refiner (.*)\n", result.stderr
    )
    assert match is not None and not (out / "outcome.json").exists()
    command = shlex.split(match[2])
    assert command[0] == "train" and command[-1] == "--resume" and str(out) in command

    done = int(match[1].replace(",", ""))
    command[command.index("--rounds") + 1] = str(done + 1)
    assert CliRunner().invoke(app, command).exit_code == 0
    words[words.index("100000")], words[-1] = str(done + 1), str(whole)
    assert CliRunner().invoke(app, words).exit_code == 0
    weights = [(folder / "weights.safetensors").read_bytes() for folder in (out, whole)]
    assert weights[0] == weights[1]


def test_a_second_ctrl_c_stops_at_once() -> None:
    with pytest.raises(KeyboardInterrupt), stop_on_interrupt(lambda: None) as stop:
        assert not stop()
        signal.raise_signal(signal.SIGINT)
        assert stop()
        signal.raise_signal(signal.SIGINT)
