"""Every example runs as it says: the loss falls, the secret is private, gradients are protected."""

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
# Runs an example, and compares the gradients of its optimizer's steps with those that were uploaded, and with
# the plain ones of the same batches, by their cosine: a trainer may scale or clip them.
WATCH = """
import runpy, sys
import torch
from torch.nn.functional import cosine_similarity
from torch.optim.optimizer import register_optimizer_step_pre_hook
from refiner import Refiner, gradients

protection, sums, applied, plain = Refiner.protection, {}, [], []

def watched(self, task, x, y, **rest):
    result = protection(self, task, x, y, **rest)
    name = max(task.names, key=lambda name: task.shapes[name].numel())
    both = torch.stack([result.update.tensors[name], gradients(task, x[None], y[None])[name]])
    parameter = task.model.get_parameter(name)
    sums[parameter] = sums.get(parameter, 0) + both.flatten(1)
    return result

def before_step(*_):
    for parameter, both in sums.items():
        cosines = cosine_similarity(parameter.grad.flatten()[None], both)
        applied.append(float(cosines[0]))
        plain.append(float(cosines[1]))
    sums.clear()

Refiner.protection = watched
register_optimizer_step_pre_hook(before_step)
sys.argv = sys.argv[1:]
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    print("steps", len(applied), "uploaded", min(applied, default=0), "plain", max(plain, default=0))
"""


def run(example: str, *arguments: str, folder: Path, watch: bool = True) -> subprocess.CompletedProcess[str]:
    """Run an example in `folder`, as a user would."""
    program = [sys.executable, *(["-c", WATCH] if watch else []), str(EXAMPLES / example), *arguments]
    paths = [str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        program, cwd=folder, env=environment, capture_output=True, text=True, timeout=240, check=False
    )


def check_training(result: subprocess.CompletedProcess[str], pattern: str) -> None:
    """The example ended well, and each loss is below that of the first epoch or round."""
    output = result.stdout + result.stderr
    assert result.returncode == 0, output[-3000:]
    losses = [float(loss) for loss in re.findall(pattern, output)]
    assert len(losses) >= 2 and losses[-1] < losses[0], output[-3000:]
    assert re.search(r"accuracy \d+", output)


def check_secret(file: Path) -> None:
    assert len(file.read_bytes()) == 32
    assert file.stat().st_mode & 0o777 == 0o600


def check_protected(result: subprocess.CompletedProcess[str], steps: int) -> None:
    """The optimizer applied what was uploaded, which is not the plain gradient."""
    match = re.search(r"steps (\d+) uploaded (\S+) plain (\S+)", result.stdout)
    assert match is not None and int(match[1]) == steps, result.stdout
    assert float(match[2]) > 0.9999 and 0 < float(match[3]) < 0.99, result.stdout


@pytest.fixture
def needs(missing: Callable[[str], NoReturn]) -> Callable[[str], None]:
    def check(module: str) -> None:
        if importlib.util.find_spec(module) is None:
            missing(module)

    return check


@pytest.mark.processes
def test_the_plain_loop(tmp_path: Path) -> None:
    result = run("plain_loop.py", "--epochs", "2", "--images", "32", folder=tmp_path)
    check_training(result, r"epoch \d+: loss (\S+),")
    check_secret(tmp_path / "plain_loop.secret")
    check_protected(result, steps=2)


@pytest.mark.processes
def test_tabular_data(tmp_path: Path) -> None:
    result = run("tabular_mlp.py", "--epochs", "10", folder=tmp_path, watch=False)
    check_training(result, r"epoch \d+: loss (\S+),")
    assert "none against linear: revealed" in result.stdout
    # One of 50 rows may be identified by chance.
    assert re.search(
        "dp-gaussian:magnitude=0.1,clip=none against linear: (neither|identifiable)", result.stdout
    )


@pytest.mark.frameworks
def test_the_plain_loop_under_autocast_is_refused(tmp_path: Path) -> None:
    result = run("plain_loop.py", "--amp", folder=tmp_path)
    assert result.returncode == 1 and "steps 0" in result.stdout
    assert result.stderr.splitlines()[-1].endswith(
        "torch.autocast is on for cpu: protected gradients are computed in full precision only; "
        "move model(x) and loss.backward() out of the autocast block"
    )


@pytest.mark.frameworks
def test_the_lightning_module(needs: Callable[[str], None], tmp_path: Path) -> None:
    needs("lightning")
    result = run("lightning_module.py", "--epochs", "3", "--images", "32", folder=tmp_path)
    check_training(result, r"epoch \d+: loss (\S+),")
    check_secret(tmp_path / "lightning.secret")
    check_protected(result, steps=6)
    refused = run("lightning_module.py", "--precision", "bf16-mixed", folder=tmp_path)
    assert refused.returncode == 1 and "steps 0" in refused.stdout
    assert "torch.autocast is on for cpu: refiner does not work under it" in refused.stderr


@pytest.mark.frameworks
def test_the_trainer_of_hugging_face(needs: Callable[[str], None], tmp_path: Path) -> None:
    needs("transformers")
    result = run("hf_trainer.py", "--epochs", "3", folder=tmp_path)
    check_training(result, r"'loss': '?([\d.]+)")
    check_secret(tmp_path / "hf_trainer.secret")
    check_protected(result, steps=9)
    refused = run("hf_trainer.py", "--bf16", folder=tmp_path)
    assert refused.returncode == 1 and "steps 0" in refused.stdout
    assert "runs under torch.autocast" in refused.stderr.splitlines()[-1]


@pytest.mark.frameworks
def test_the_simulation_with_ray(needs: Callable[[str], None], tmp_path: Path) -> None:
    """Both runs are one test: two clusters of Ray at once are more than two cores can bear."""
    needs("ray")
    failed = run("flower/simulation.py", "--rounds", "1", "--without-folder", folder=tmp_path, watch=False)
    assert failed.returncode == 1
    assert "0 of 2 nodes sent a valid reply" in failed.stderr
    assert "so there is no place for its secret; start the SuperNode with --node-config" in failed.stderr
    result = run("flower/simulation.py", "--rounds", "2", folder=tmp_path, watch=False)
    check_training(result, r"round \d+: loss (\S+),")
    for client in range(2):
        check_secret(tmp_path / "simulation" / f"client-{client}" / "secret")


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.py")), ids=lambda path: path.name)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 80
