"""Validation of settings: right values pass unchanged, wrong ones are one-line errors."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refiner import checks
from refiner.errors import SettingError


@given(value=st.floats(0, 1), low=st.just(0.0))
def test_a_number_in_range_passes(value: float, low: float) -> None:
    assert checks.number("a", value, low, 1) == value


@given(value=st.one_of(st.floats(), st.integers(), st.text(), st.booleans(), st.none(), st.just(10**400)))
def test_any_other_value_is_one_line_with_field_value_and_range(value: object) -> None:
    inside = isinstance(value, int | float) and not isinstance(value, bool) and 2 <= value <= 3
    if inside:
        assert checks.number("a", value, 2, 3) == value
        return
    with pytest.raises(SettingError) as raised:
        checks.number("a", value, 2, 3)
    text = str(raised.value)
    assert text.startswith("a = ")
    assert text.endswith("expected a number in [2, 3]")
    assert "\n" not in text
    assert len(text) < 150


def test_errors_show_open_and_infinite_ranges() -> None:
    assert checks.number("a", 5, 0, above=True) == 5
    with pytest.raises(SettingError, match=r"\(0, ∞\)"):
        checks.number("a", 0, 0, above=True)
    with pytest.raises(SettingError):
        checks.number("a", math.inf, 0)


def test_integers_choices_and_flags() -> None:
    assert checks.integer("n", 3, 1, 3) == 3
    assert checks.choice("c", "x", ("x", "y")) == "x"
    assert checks.flag("f", True) is True
    for call in (
        lambda: checks.integer("n", 4, 1, 3),
        lambda: checks.integer("n", 3.0, 1),
        lambda: checks.integer("n", True, 0),
        lambda: checks.choice("c", "z", ("x", "y")),
        lambda: checks.choice("c", 1, ("x", "y")),
        lambda: checks.flag("f", 1),
    ):
        with pytest.raises(SettingError, match="expected"):
            call()


@pytest.mark.hostile
def test_a_number_too_large_for_calculations_is_told_the_real_limit() -> None:
    with pytest.raises(SettingError, match=r"^a = 1e\+308: expected a number in \[0, 1e300\)$"):
        checks.number("a", 1e308, 0)
