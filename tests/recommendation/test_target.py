"""When a defence counts as good enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refiner.audit.result_records import Mean
from refiner.errors import SettingError
from refiner.metrics import Share
from refiner.recommendation import Evidence, Target


def evidence(
    psnr: float = 13.0, visible: int = 0, identifiable: int = 0, low: float | None = None, total: int = 20
) -> Evidence:
    return Evidence(
        "linear", Mean(psnr, low, None), 13.0, Share.of(visible, total), Share.of(identifiable, total)
    )


@pytest.mark.parametrize(
    ("target", "found", "met"),
    [
        (Target(), evidence(13.4), True),
        (Target(), evidence(13.6), False),
        (Target(), evidence(10.0, visible=1, identifiable=1), False),
        (Target(), evidence(10.0, identifiable=2), True),
        (Target(), evidence(10.0, identifiable=3), False),
        (Target(max_psnr=14), evidence(14.0, visible=20, identifiable=20), True),
        (Target(max_psnr=14), evidence(14.1), False),
        (Target(max_exposed=0.05), evidence(30.0, identifiable=1), True),
        (Target(max_exposed=0.05), evidence(5.0, identifiable=2), False),
    ],
)
def test_a_target_is_met_up_to_its_limit(target: Target, found: Evidence, met: bool) -> None:
    assert target.is_met(found) is met


@given(
    st.floats(0, 40), st.floats(0, 5), st.integers(0, 20), st.integers(0, 20), st.sampled_from(["", "p", "e"])
)
def test_what_is_met_is_possible(psnr: float, width: float, visible: int, more: int, kind: str) -> None:
    target = {"": Target(), "p": Target(max_psnr=14), "e": Target(max_exposed=0.2)}[kind]
    found = evidence(psnr, visible, min(20, visible + more), low=psnr - width)
    assert not target.is_met(found) or target.is_possible(found)


def test_a_small_measurement_rules_out_only_what_is_clear() -> None:
    assert Target().is_possible(evidence(15.0, low=13.2))
    assert not Target().is_possible(evidence(15.0, low=14.0))
    assert Target(max_exposed=0.05).is_possible(evidence(identifiable=1, total=4))
    assert not Target(max_exposed=0.05).is_possible(evidence(identifiable=4, total=4))


def test_two_models_count_by_the_worse_one() -> None:
    hidden, seen = evidence(12.0, identifiable=3), evidence(19.0, visible=2, identifiable=2)
    both = hidden.or_worse(seen)
    assert (both.psnr.value, both.visible.count, both.identifiable.count) == (19.0, 2, 3)
    assert hidden.or_worse(None) is hidden


def test_wrong_limits_are_one_line() -> None:
    with pytest.raises(SettingError, match=r"max_exposed = 5: expected a number in \[0, 1\]"):
        Target(max_exposed=5)
    with pytest.raises(SettingError, match="together with max_psnr"):
        Target(max_psnr=14, max_exposed=0.1)
