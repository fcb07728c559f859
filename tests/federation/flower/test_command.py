"""`refiner train --engine flower` as a user types it, and that no process is left however it ends."""

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


def test_the_command_trains_and_leaves_no_process(
    tmp_path: Path, running: Callable[[Path], list[str]]
) -> None:
    out = tmp_path / "out"
    result = CliRunner().invoke(app, [*SHORT, "--out", str(out), "--defense", "refiner:iterations=1"])
    assert result.exit_code == 0, result.output
    assert "after 2 rounds" in result.output
    names = {path.name for path in out.iterdir()}
    assert {"weights.safetensors", "outcome.json", "settings.json", "rounds.jsonl", "clients"} <= names
    assert "flower" not in names
    assert json.loads((out / "settings.json").read_text())["defense"] == "refiner:iterations=1"
    assert running(out) == []
    again = CliRunner().invoke(app, [*SHORT, "--out", str(out)])
    assert again.exit_code == 2 and "contains a training; use --resume" in again.output


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_command_leaves_no_process(
    how: signal.Signals, tmp_path: Path, running: Callable[[Path], list[str]]
) -> None:
    out = tmp_path / "out"
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore it
    program = [sys.executable, "-m", "refiner", *SHORT, "--out", str(out)]
    process = subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        node_log = out / "flower" / "supernode-1" / "log"
        end = time.monotonic() + 60
        while not (node_log.exists() and "SuperNode ID" in node_log.read_text()):
            assert process.poll() is None and time.monotonic() < end
            time.sleep(0.1)
        os.kill(process.pid, how)
        process.wait(30)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != 0 and not (out / "outcome.json").exists()
    assert running(out) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--engine", "flwr"], "--engine = 'flwr': expected one of 'local', 'flower'"),
        (["--deadline", "0"], "--deadline = 0.0: expected a number in (0, ∞)"),
        (["--defense", "refinr"], "--defense = 'refinr': unknown; did you mean 'refiner'"),
        (["--clients", "500"], "clients"),
        (["--checkpoint-every", "0"], "--checkpoint-every = 0: expected an integer ≥ 1"),
        (["--evaluate-every", "0"], "--evaluate-every = 0: expected an integer ≥ 1"),
        (["--aggregation", "sicher"], "--aggregation = 'sicher': unknown"),
        (["--aggregation", "secure"], "minimum = 3: a round of 2 clients could reveal the sum of 2"),
        (["--aggregation", "secure", "--engine", "local"], "aggregation = 'secure'"),
    ],
)
def test_a_wrong_option_is_reported_before_any_process_starts(
    options: list[str], message: str, tmp_path: Path
) -> None:
    result = CliRunner().invoke(app, [*SHORT, "--out", str(tmp_path / "out"), *options])
    assert result.exit_code == 2
    assert message in result.output and len(result.output.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
