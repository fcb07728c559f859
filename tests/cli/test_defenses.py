"""`refiner defenses` and `refiner attacks`: all that can be chosen, and what it is set by."""

import pytest
from typer.testing import CliRunner, Result

from refiner.attacks import ATTACKS
from refiner.cli import app
from refiner.defenses import DEFENSES


def call(*words: str, code: int = 0) -> Result:
    # Wide, so that no word is broken.
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


def squeezed(text: str) -> str:
    return " ".join(text.split())


def test_every_defence_is_there() -> None:
    told = call("defenses").output
    for name in DEFENSES:
        assert f"\n {name} " in f"\n{told}" or f"\n{name} " in f"\n{told}", name
    for word in ("needs the data", "needs the gradient", "guarantee: none: the raw gradient leaves"):
        assert word in squeezed(told)
    assert "tau = 0.95, a number in [0, 1]" in squeezed(told)
    assert "as refiner, but" in squeezed(told)
    assert "refiner+none" in told


def test_every_attack_is_there() -> None:
    told = squeezed(call("attacks").output)
    for name in ATTACKS:
        assert f" {name} " in told
    assert "needs generator" in told
    assert "total_variation = 0.0001, a number in [0, ∞)" in told


@pytest.mark.parametrize("name", DEFENSES)
def test_one_defence_in_full(name: str) -> None:
    told = squeezed(call("defenses", name).output)
    assert told.startswith(name)
    for word in ("needs:", "cost:", "guarantee:"):
        assert word in told


def test_refiner_in_full() -> None:
    told = squeezed(call("defenses", "refiner").output)
    assert "tau" in told and "Decay factor τ of the layer weight." in told
    assert "stays on the client" in told
    assert "0.5" in squeezed(call("defenses", "refiner-paper").output)


def test_one_attack_in_full() -> None:
    told = squeezed(call("attacks", "ggl").output)
    assert "needs: generator" in told and "Weight of the latents' divergence" in told
    assert "cost:" not in told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ("defenses", "refine"),
            "refiner: defense = 'refine': unknown; did you mean 'refiner'? Known: none,",
        ),
        (("attacks", "invert"), "refiner: attack = 'invert': unknown; did you mean 'inverting'? Known: dlg,"),
    ],
)
def test_an_unknown_name_is_one_line(words: tuple[str, ...], told: str) -> None:
    error = call(*words, code=2).stderr
    assert error.startswith(told) and error.count("\n") == 1
