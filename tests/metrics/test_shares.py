"""Shares with Wilson intervals, against scipy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refiner.errors import SettingError
from refiner.metrics import Share
from refiner.metrics.shares import wilson_interval


@given(st.integers(1, 2000), st.data())
def test_interval_is_scipys_wilson_interval(total: int, data: st.DataObject) -> None:
    from scipy.stats import binomtest

    count = data.draw(st.integers(0, total))
    expected = binomtest(count, total).proportion_ci(0.95, method="wilson")
    share = Share.of(count, total)
    assert (share.low, share.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert 0 <= share.low <= share.value <= share.high <= 1


def test_interval_counts_clients_not_images() -> None:
    """Images of one batch share an upload: 80 images of 20 clients are no more evidence than 20 images."""
    assert wilson_interval(0.25, 20) == pytest.approx(
        (Share.of(20, 80, clients=20).low, Share.of(20, 80, clients=20).high)
    )
    assert Share.of(20, 80, clients=80) == Share.of(20, 80)


def test_share_as_text() -> None:
    assert str(Share.of(3, 20)) == "3 of 20"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 0), "total = 0: expected an integer ≥ 1"),
        ((3, 2), r"count = 3: expected an integer in \[0, 2\]"),
        ((-1, 2), r"count = -1: expected an integer in \[0, 2\]"),
        ((1, 2, 3), r"clients = 3: expected an integer in \[1, 2\]"),
    ],
)
def test_numbers_out_of_range_raise_one_line(arguments: tuple[int, ...], message: str) -> None:
    with pytest.raises(SettingError, match=f"^{message}$"):
        Share.of(*arguments)
