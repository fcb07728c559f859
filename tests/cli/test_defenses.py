"""Tests of `refiner defenses` and `refiner attacks`."""

import pytest
from typer.testing import CliRunner, Result

from refiner.attacks import ATTACKS
from refiner.cli import app
from refiner.defenses import DEFENSES
from refiner.inference import MEMBERSHIP


def call(*words: str, code: int = 0) -> Result:
    # Wide enough that no word is broken.
    result = CliRunner().invoke(app, list(words), env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


def single_spaced(text: str) -> str:
    return " ".join(text.split())


def test_every_defence_is_listed() -> None:
    output = call("defenses").output
    for name in DEFENSES:
        assert f"\n {name} " in f"\n{output}" or f"\n{name} " in f"\n{output}", name
    for word in ("needs the data", "needs the gradient", "guarantee: none: the raw gradient is uploaded"):
        assert word in single_spaced(output)
    assert "tau = 0.95, a number in [0, 1]" in single_spaced(output)
    assert "as refiner, except" in single_spaced(output)
    assert "refiner+gq" in output


def test_every_attack_is_listed() -> None:
    output = single_spaced(call("attacks").output)
    for name in (*ATTACKS, *MEMBERSHIP, "attribute"):
        assert f" {name} " in output
    assert "membership, as membership:method=NAME" in output
    assert "needs generator" in output
    assert "total_variation = 0.0001, a number in [0, ∞)" in output


@pytest.mark.parametrize("name", DEFENSES)
def test_details_of_each_defence(name: str) -> None:
    output = single_spaced(call("defenses", name).output)
    assert output.startswith(name)
    for word in ("needs:", "cost:", "guarantee:"):
        assert word in output
    reference = DEFENSES[name]().reference
    assert (f"paper: {reference}" in output) is bool(reference)


@pytest.mark.parametrize("name", ATTACKS)
def test_details_of_each_attack_name_its_paper(name: str) -> None:
    assert f"paper: {ATTACKS[name]().reference}" in single_spaced(call("attacks", name).output)


def test_details_of_refiner() -> None:
    output = single_spaced(call("defenses", "refiner").output)
    assert "tau" in output and "Decay factor τ of the layer weight." in output
    assert "stays on the client" in output
    assert "0.5" in single_spaced(call("defenses", "refiner-paper").output)


def test_details_of_an_attack() -> None:
    assert "paper: Melis" in single_spaced(call("attacks", "attribute").output)
    output = single_spaced(call("attacks", "ggl").output)
    assert "needs: generator" in output and "Weight of the latents' divergence" in output
    assert "cost:" not in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("defenses", "refine"),
            "refiner: defense = 'refine': unknown; did you mean 'refiner'? Known: none,",
        ),
        (("attacks", "invert"), "refiner: attack = 'invert': unknown; did you mean 'inverting'? Known: dlg,"),
    ],
)
def test_unknown_names_print_one_line(words: tuple[str, ...], message: str) -> None:
    error = call(*words, code=2).stderr
    assert error.startswith(message) and error.count("\n") == 1
