"""Errors of the library as a user of the command line can act on them."""

from pathlib import Path

import pytest

from refiner.cli.wording import in_options

OPTIONS = {
    name: f"--{name.replace('_', '-')}"
    for name in (
        "victims",
        "batch",
        "attack",
        "root",
        "size",
        "weights",
        "iterations",
        "grant",
        "learning_rate",
    )
}


@pytest.mark.parametrize(
    ("given", "message", "told"),
    [
        ({"victims": 0}, "victims = 0: expected an integer ≥ 1", "--victims = 0: expected an integer ≥ 1"),
        ({"learning_rate": -1.0}, "learning_rate = -1.0: expected", "--learning-rate = -1.0: expected"),
        ({"root": Path("a b")}, "root = 'a b': goes with a data set", "--root = 'a b': goes with a data set"),
        ({"attack": ["ggl", "x"]}, "attack = 'x': unknown", "--attack = 'x': unknown"),
        ({"attack": ["x:lr=1"]}, "attack = 'x': unknown", "--attack = 'x': unknown"),
        (
            {"victims": 201, "batch": 1},
            "victims × batch = 201 × 1: expected at most 200",
            "--victims × --batch = 201 × 1: expected at most 200",
        ),
        (
            {},
            "data = 'cifar10': expected a folder; set root",
            "data = 'cifar10': expected a folder; set --root",
        ),
        ({}, "5×4 pixels; set size to make them equal", "5×4 pixels; set --size to make them equal"),
        (
            {},
            "use ThreatModel(generator=True, labels=True) if",
            "use --grant generator --grant labels if",
        ),
    ],
)
def test_what_a_user_can_set(given: dict[str, object], message: str, told: str) -> None:
    assert in_options(message, OPTIONS, given) == told


@pytest.mark.parametrize(
    ("given", "message"),
    [
        # Another thing of that name, of which the option is not the cause.
        ({"weights": None}, "weights = 'g.safetensors': not a generator"),
        ({"weights": Path("w")}, "weights = 'g.safetensors': not a generator"),
        ({"iterations": 5}, "iterations = 0: expected an integer ≥ 1"),
        ({"iterations": 5}, "iterations = 50: expected an integer ≥ 100"),
        ({}, "tau = 2: expected a number in [0, 1]"),
        ({}, "x lies outside its range; set input_range"),
        ({}, "no equals sign"),
        ({"victims": 1}, "victims × other = 1 × 2: expected"),
    ],
)
def test_what_it_can_not_is_left_as_it_is(given: dict[str, object], message: str) -> None:
    assert in_options(message, OPTIONS, given) == message


def test_a_command_without_grants() -> None:
    assert in_options("use ThreatModel(labels=True)", {}, {}) == "use ThreatModel(labels=True)"
