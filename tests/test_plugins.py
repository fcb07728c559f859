"""Third-party defences, attacks and models are found by entry points; broken ones are named and skipped."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from refiner.attacks import ATTACKS
from refiner.cli import app
from refiner.defenses import DEFENSES, make_defense
from refiner.errors import PluginWarning
from refiner.models import MODELS, make_model
from refiner.registry import Registry

CODE = '''
from dataclasses import dataclass
from typing import ClassVar
from torch import nn
from refiner.attacks import InvertingGradients
from refiner.defenses import Pruning


@dataclass(frozen=True)
class Half(Pruning):
    """Prunes half of the entries."""

    name: ClassVar[str] = "half"
    rate: float = 0.5


@dataclass(frozen=True)
class Quick(InvertingGradients):
    """Inverting gradients with few iterations."""

    name: ClassVar[str] = "quick"
    iterations: int = 3


@dataclass(frozen=True)
class Demanding(Pruning):
    rate: float = 2.0  # out of range: can't be made


@dataclass(frozen=True)
class BrokenGuarantee(Half):
    """Fails when it is asked for its guarantee."""

    def guarantee(self):
        return _unfinished()


@dataclass(frozen=True)
class BrokenRun(Quick):
    """Fails when it is run."""

    def run(self, observations, threat, options):
        raise KeyError("two\\nlines")


@dataclass(frozen=True)
class EmptyRun(Quick):
    """Returns nothing."""

    name: ClassVar[str] = "empty-run"

    def run(self, observations, threat, options):
        return None


def _unfinished():
    raise NotImplementedError("unfinished")


def broken_model(classes=10, input_shape=(3, 32, 32)):
    return _unfinished()


def no_model(classes=10, input_shape=(3, 32, 32)):
    return None


def linear(classes=10, input_shape=(3, 32, 32)):
    return nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0] * input_shape[1] * input_shape[2], classes))


def no_arguments():
    return nn.Linear(1, 1)
'''
ENTRY_POINTS = """
[refiner.defenses]
half = third_party:Half
none = third_party:Half
two+two = third_party:Half
missing-module = no_such_module:Half
missing-class = third_party:Quarter
no-defense = third_party:Quick
demanding = third_party:Demanding
broken-guarantee = third_party:BrokenGuarantee

[refiner.attacks]
quick = third_party:Quick
broken-run = third_party:BrokenRun
empty-run = third_party:EmptyRun

[refiner.models]
linear = third_party:linear
broken-model = third_party:broken_model
no-model = third_party:no_model
no-arguments = third_party:no_arguments
"""
REGISTRIES: tuple[Registry[object], ...] = (DEFENSES, ATTACKS, MODELS)  # type: ignore[assignment]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A distribution with these entry points, installed for the time of a test."""
    (tmp_path / "third_party.py").write_text(CODE)
    info = tmp_path / "third_party-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: third-party\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(tmp_path))
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_plugins", None)
    yield
    sys.modules.pop("third_party", None)


@pytest.mark.usefixtures("installed")
def test_plugins_are_found_by_name_and_the_broken_ones_named_and_skipped() -> None:
    with pytest.warns(PluginWarning) as warned:
        assert "half" in DEFENSES
    messages = sorted(str(warning.message) for warning in warned)
    assert [message.split("'")[1] for message in messages] == [
        "demanding", "missing-class", "missing-module", "no-defense", "none", "two+two",
    ]  # fmt: skip
    assert all("of third-party is skipped (" in message and "\n" not in message for message in messages)
    assert "expected a number in [0, 1" in messages[0]
    assert make_defense("none").name == "none"
    assert make_defense("half:rate=0.25+gq").settings()["half.rate"] == 0.25


@pytest.mark.usefixtures("installed")
def test_models_by_entry_point() -> None:
    with pytest.warns(PluginWarning, match=r"'no-arguments' .*its arguments lack classes and input_shape"):
        model = make_model("linear", classes=7, input_shape=(1, 4, 4))
    assert sum(p.numel() for p in model.parameters()) == 7 * 16 + 7


@pytest.mark.processes
@pytest.mark.usefixtures("installed")
@pytest.mark.filterwarnings("ignore::refiner.errors.PluginWarning")
def test_the_command_line_lists_and_audits_plugins(tmp_path: Path) -> None:
    run = CliRunner().invoke
    assert "half" in run(app, ["defenses"]).output
    assert "quick" in run(app, ["attacks"]).output
    options = ["--defense", "half", "--attack", "quick", "--model", "linear", "--victims", "2"]
    result = run(app, ["audit", *options, "--out", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert "half" in result.output and (tmp_path / "out" / "report.html").exists()


@pytest.mark.usefixtures("installed")
@pytest.mark.filterwarnings("ignore::refiner.errors.PluginWarning")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["defenses", "broken-guarantee"],
            "defense = 'broken-guarantee': this plug-in failed (NotImplementedError: unfinished)",
        ),
        (
            ["audit", "--defense", "broken-guarantee"],
            "defense = 'broken-guarantee': this plug-in failed (NotImplementedError: unfinished)",
        ),
        (
            ["audit", "--attack", "broken-run"],
            "attack = 'broken-run': this plug-in failed (KeyError: 'two\\nlines')",
        ),
        (
            ["audit", "--attack", "empty-run"],
            "--attack = 'empty-run': its run returned a NoneType, not a Reconstruction",
        ),
        (
            ["audit", "--model", "broken-model"],
            "model = 'broken-model': this plug-in failed (NotImplementedError: unfinished)",
        ),
        (["audit", "--model", "no-model"], "--model = 'no-model': its factory returned a NoneType"),
    ],
)
def test_a_failing_plugin_is_one_line_that_names_it(words: list[str], message: str, tmp_path: Path) -> None:
    options = [] if words[0] == "defenses" else ["--victims", "1", "--quiet", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*words, *options])
    assert result.exit_code == 2, result.output
    (line,) = [line for line in result.stderr.splitlines() if "is skipped" not in line]
    assert line.startswith(f"refiner: {message}")


@pytest.mark.usefixtures("installed")
@pytest.mark.filterwarnings("ignore::refiner.errors.PluginWarning")
def test_the_list_goes_on_after_a_failing_plugin() -> None:
    result = CliRunner().invoke(app, ["defenses"])
    assert result.exit_code == 0 and "half" in result.stdout and "broken-guarantee" not in result.stdout
    assert (
        "warning: defense = 'broken-guarantee': not listed (NotImplementedError: unfinished)" in result.stderr
    )


@pytest.mark.usefixtures("installed")
def test_errors_of_the_library_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(PluginWarning):
        DEFENSES.plugins()

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("refiner.cli.methods.show_defenses", fail)
    result = CliRunner().invoke(app, ["defenses"])
    assert isinstance(result.exception, RuntimeError)


@pytest.mark.processes
@pytest.mark.usefixtures("installed")
def test_the_command_line_loads_plugins_only_when_needed(tmp_path: Path) -> None:
    (tmp_path / "third_party.py").write_text("print('loaded')\n")
    result = subprocess.run(
        [sys.executable, "-m", "refiner", "--version"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.startswith("refiner ") and "loaded" not in result.stdout and not result.stderr


def test_built_in_names_load_no_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DEFENSES, "_plugins", None)
    make_defense("pruning")
    assert DEFENSES["refiner"] and DEFENSES._plugins is None
