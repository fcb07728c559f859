"""`refiner train --engine flower` as a user types it, and that nothing of it is left however it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refiner.cli import app

pytestmark = pytest.mark.flower

SHORT = ["train", "--engine", "flower", "--clients", "2", "--batch", "4", "--rounds", "2"]


def test_trains_and_leaves_nothing_running(tmp_path: Path, gone: Callable[[Path], list[str]]) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, [*SHORT, "--out", str(out), "--defense", "refiner:iterations=1"])
    assert result.exit_code == 0, result.output
    assert "right after 2 rounds" in result.output
    names = {path.name for path in out.iterdir()}
    assert {"weights.safetensors", "outcome.json", "settings.json", "rounds.jsonl", "clients"} <= names
    assert "flower" not in names
    assert json.loads((out / "settings.json").read_text())["defense"] == "refiner:iterations=1"
    assert gone(out) == []
    again = CliRunner().invoke(app, [*SHORT, "--out", str(out)])
    assert again.exit_code == 2 and "holds a training; use --resume" in again.output


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_ended_halfway(how: signal.Signals, tmp_path: Path, gone: Callable[[Path], list[str]]) -> None:
    out = tmp_path / "out"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    program = [sys.executable, "-m", "refiner", *SHORT, "--out", str(out)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        node = out / "flower" / "supernode-1" / "log"
        end = time.monotonic() + 60
        while not (node.exists() and "SuperNode ID" in node.read_text()):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        os.kill(process.pid, how)
        process.wait(30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != 0 and not (out / "outcome.json").exists()
    assert gone(out) == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--engine", "flwr"], "--engine = 'flwr': expected one of 'local', 'flower'"),
        (["--deadline", "0"], "--deadline = 0.0: expected a number in (0, ∞)"),
        (["--defense", "refinr"], "--defense = 'refinr': unknown; did you mean 'refiner'"),
        (["--clients", "500"], "clients"),
        (["--checkpoint-every", "0"], "--checkpoint-every = 0: expected an integer ≥ 1"),
        (["--evaluate-every", "0"], "--evaluate-every = 0: expected an integer ≥ 1"),
        (["--aggregation", "sicher"], "--aggregation = 'sicher': unknown"),
        (["--aggregation", "secure"], "minimum = 3: a round of 2 clients would open a sum of 2"),
        (["--aggregation", "secure", "--engine", "local"], "goes with engine = flower only"),
    ],
)
def test_wrong_options_start_nothing(options: list[str], told: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, [*SHORT, "--out", str(tmp_path / "out"), *options])
    assert result.exit_code == 2
    assert told in result.output and len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
