"""Help, version and completion: at once, without PyTorch; every option and setting is described."""

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from refiner.attacks import ATTACKS, ThreatModel
from refiner.cli import app, choices
from refiner.cli.evalnet import train_command
from refiner.cli.gan import gan_train_command
from refiner.cli.noise import predict_command
from refiner.data import DATASETS
from refiner.defenses import DEFENSES, Refiner
from refiner.describe import settings_of
from refiner.evaluation import EvaluationTrainingSettings
from refiner.federation import SERVERS
from refiner.generator import GANTrainingSettings
from refiner.inference import MEMBERSHIP
from refiner.models import MODELS

# Runs the command line, then reports on stderr whether it imported PyTorch.
PROGRAM = """
import atexit, sys
atexit.register(lambda: print("torch" in sys.modules, file=sys.stderr))
sys.argv[0] = "refiner"
from refiner.cli import app
app(prog_name="refiner")
"""


def run_process(*words: str, **environment: str) -> str:
    """The output of the command line in a new process, which must not import PyTorch."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "False\n")
    return done.stdout


def commands() -> Iterator[tuple[tuple[str, ...], Any]]:
    """The words and the click command of every command and group."""

    def below(words: tuple[str, ...], command: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
        yield words, command
        for name, inner in getattr(command, "commands", {}).items():
            yield from below((*words, name), inner)

    return below((), typer.main.get_command(app))


@pytest.mark.processes
@pytest.mark.parametrize("words", [("--version",), ("-h",), ("audit", "-h"), ("data", "fetch", "--help")])
def test_version_and_help_import_no_pytorch(words: tuple[str, ...]) -> None:
    output = run_process(*words)
    assert output.startswith("refiner ") if words == ("--version",) else "Usage: refiner" in output


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_every_command_has_a_short_help_option(words: tuple[str, ...]) -> None:
    long, short = (CliRunner().invoke(app, [*words, option]) for option in ("--help", "-h"))
    assert short.exit_code == 0 and "Usage: " in short.stdout and short.stdout == long.stdout


def test_every_option_and_argument_is_described() -> None:
    undescribed = [
        " ".join([*words, *parameter.opts])
        for words, command in commands()
        for parameter in command.params
        if not (getattr(parameter, "help", None) or "").strip()
    ]
    assert undescribed == []
    assert [words for words, command in commands() if not command.help] == []


@pytest.mark.parametrize(
    "registry", [DEFENSES, ATTACKS, MEMBERSHIP], ids=["defences", "attacks", "membership"]
)
def test_every_setting_is_described(registry: Any) -> None:
    undescribed = [
        f"{name}:{setting.name}"
        for name in registry.builtin_names()
        for setting in settings_of(registry[name])
        if not setting.help.strip()
    ]
    assert undescribed == []


def test_the_names_in_the_help_are_those_of_the_library() -> None:
    assert list(choices.ATTACKS) == ATTACKS.builtin_names()
    assert list(choices.DEFENSES) == DEFENSES.builtin_names()
    assert list(choices.MEMBERSHIP) == MEMBERSHIP.builtin_names()
    assert list(choices.MODELS) == MODELS.builtin_names()
    assert list(choices.DATASETS) == list(DATASETS)
    assert list(choices.SERVERS) == list(SERVERS)
    assert list(choices.CAPABILITIES) == [field.name for field in fields(ThreatModel)]


@pytest.mark.parametrize(
    ("command", "settings", "count"),
    [(train_command, EvaluationTrainingSettings, 5), (gan_train_command, GANTrainingSettings, 5)],
)
def test_the_defaults_in_the_help_are_those_of_the_library(command: Any, settings: Any, count: int) -> None:
    options = inspect.signature(command).parameters
    names = [field.name for field in fields(settings) if field.name in options]
    assert len(names) == count
    for name in names:
        assert options[name].default == getattr(settings, name), name
    assert inspect.signature(predict_command).parameters["strength"].default == Refiner.alpha


@pytest.mark.processes
@pytest.mark.parametrize(
    ("line", "completion"),
    [("refiner data pa", "partition"), ("refiner train --resu", "--resume")],
)
def test_commands_and_options_are_completed_without_pytorch(line: str, completion: str) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    assert completion in run_process(_REFINER_COMPLETE="complete_bash", **words).split()


@pytest.mark.processes
def test_completion_of_a_shell_is_printed() -> None:
    # Without the variable typer looks for the shell that started this process.
    output = run_process("--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert "complete -o default -F" in output and "_REFINER_COMPLETE=complete_bash" in output
