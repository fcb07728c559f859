"""Tests of errors as a user of the command line can act on them."""

from pathlib import Path

import pytest

from refiner.cli.option_errors import message_with_options
from refiner.errors import DataError, RefinerError, SettingError, ThreatModelError

OPTIONS = {
    name: f"--{name.replace('_', '-')}"
    for name in ("victims", "attack", "root", "size", "weights", "iterations", "grant", "learning_rate")
}


def wrong(field: str, value: object) -> SettingError:
    return SettingError(field=field, value=value, expected="another")


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        ({"victims": 0}, wrong("victims", 0), "--victims = 0: expected another"),
        (
            {"learning_rate": -1.0},
            wrong("learning_rate", -1.0),
            "--learning-rate = -1.0: expected another",
        ),
        ({"root": Path("a b")}, wrong("root", "a b"), "--root = 'a b': expected another"),
        (
            {"weights": "w"},
            wrong("weights", Path("w")),
            "--weights = PosixPath('w'): expected another",
        ),
        ({"attack": ["ggl", "x"]}, wrong("attack", "x"), "--attack = 'x': expected another"),
        ({"attack": ["x:lr=1"]}, wrong("attack", "x"), "--attack = 'x': expected another"),
        (
            {"weights": Path("w")},
            DataError(field="weights", value="w", problem="no such file"),
            "--weights = 'w': no such file",
        ),
        (
            {"size": None},
            DataError("5×4 pixels; set size to make them equal", field="size"),
            "5×4 pixels; set size to make them equal (--size)",
        ),
        (
            {},
            ThreatModelError("ggl needs more", missing=["generator", "labels"]),
            "ggl needs more; add --grant generator --grant labels if the attacker has it",
        ),
    ],
)
def test_field_of_an_option_is_shown_as_the_option(
    values: dict[str, object], error: RefinerError, message: str
) -> None:
    assert message_with_options(error, OPTIONS, values) == message


@pytest.mark.parametrize(
    ("values", "error"),
    [
        # A setting with the name of an option, of which the option is not the cause.
        ({"weights": None}, wrong("weights", "g.safetensors")),
        ({"weights": Path("w")}, wrong("weights", "g.safetensors")),
        ({"iterations": 5}, wrong("iterations", 0)),
        ({"iterations": 1}, wrong("iterations", True)),
        ({"size": 8}, DataError("5×4 pixels; set size to make them equal", field="size")),
        ({}, wrong("tau", 2)),
        ({}, DataError("an error without a field")),
    ],
)
def test_other_messages_are_unchanged(values: dict[str, object], error: RefinerError) -> None:
    assert message_with_options(error, OPTIONS, values) == str(error)


def test_commands_without_grants_name_the_threat_model() -> None:
    error = ThreatModelError("ggl needs labels", missing=["labels"])
    assert message_with_options(error, {}, {}) == str(error)
    assert "use ThreatModel(labels=True)" in str(error)
