"""Settings of a GAN training: a wrong one raises one line with field, value and range."""

import math
from dataclasses import asdict, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refiner.errors import SettingError
from refiner.generator import GANTrainingSettings

NOT_AN_INTEGER = st.one_of(st.sampled_from([None, "1", True, [1], 1j]), st.floats())
COUNT = (st.one_of(NOT_AN_INTEGER, st.integers(max_value=0)), "an integer ≥ 1")
RATE = (
    st.sampled_from([None, "1", True, 0, 0.0, -1.0, 1.01, 2, math.nan, math.inf]),
    "a number in (0, 1]",
)
WRONG: dict[str, tuple[st.SearchStrategy[object], str]] = {
    "epochs": COUNT,
    "batch": (st.one_of(NOT_AN_INTEGER, st.integers(max_value=1)), "an integer ≥ 2"),
    "generator_rate": RATE,
    "discriminator_rate": RATE,
    "discriminator_steps": COUNT,
    "average_decay": (st.sampled_from([None, "1", False, -0.1, 1.01, math.nan]), "a number in [0, 1]"),
    "augment": (st.sampled_from([0, 1, None, "True"]), "True or False"),
    "latent": COUNT,
    "classes": COUNT,
    "width": COUNT,
    "discriminator_width": COUNT,
    "seed": (
        st.one_of(NOT_AN_INTEGER, st.integers(max_value=-1), st.integers(min_value=2**31)),
        "an integer in [0, 2147483647]",
    ),
}


@pytest.mark.parametrize("field", list(WRONG))
@settings(max_examples=20)
@given(data=st.data())
def test_a_wrong_setting_raises_one_line(field: str, data: st.DataObject) -> None:
    values, expected = WRONG[field]
    value = data.draw(values)
    with pytest.raises(SettingError) as caught:
        replace(GANTrainingSettings(), **{field: value})
    message = str(caught.value)
    assert message.startswith(f"{field} = {str(repr(value))[:70]}")
    assert message.endswith(f": expected {expected}")
    assert "\n" not in message


def test_every_setting_is_tested() -> None:
    assert set(WRONG) == set(asdict(GANTrainingSettings()))
