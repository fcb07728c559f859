"""The paper's four thresholds, and values out of range."""

from dataclasses import FrozenInstanceError

import pytest

from refiner.errors import SettingError
from refiner.metrics import Thresholds


def test_the_defaults_are_the_papers() -> None:
    thresholds = Thresholds()
    assert (thresholds.psnr, thresholds.ssim, thresholds.lpips, thresholds.noise) == (15.0, 0.5, 0.05, 0.4)
    with pytest.raises(FrozenInstanceError):
        thresholds.psnr = 20.0  # type: ignore[misc]


def test_a_score_at_its_threshold_is_visible() -> None:
    at = {"psnr": 15.0, "ssim": 0.5, "lpips": 0.05, "noise": 0.4}
    hidden = {"psnr": 14.9, "ssim": 0.49, "lpips": 0.051, "noise": 0.41}
    assert all(Thresholds().visible(**at).values())
    assert not any(Thresholds().visible(**hidden).values())
    for name, value in at.items():
        thresholds = Thresholds().visible(**(hidden | {name: value}))
        assert [n for n, visible in thresholds.items() if visible] == [name]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("psnr", -1, r"psnr = -1: expected a number in \[0, ∞\)"),
        ("ssim", 1.5, r"ssim = 1.5: expected a number in \[0, 1\]"),
        ("noise", float("nan"), r"noise = nan: expected a number in \[0, 1\]"),
        ("lpips", "low", r"lpips = 'low': expected a number in \[0, 1\]"),
        ("visible_share", 5, r"visible_share = 5: expected a number in \[0, 1\]"),
        ("structure", -0.1, r"structure = -0.1: expected a number in \[0, 1\]"),
        ("identified", 0, r"identified = 0: expected a number in \(0, 1\]"),
    ],
)
def test_values_out_of_range_raise_one_line(field: str, value: object, message: str) -> None:
    with pytest.raises(SettingError, match=f"^{message}$"):
        Thresholds(**{field: value})  # type: ignore[arg-type]
