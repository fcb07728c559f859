"""The paper's four thresholds, and what is refused."""

from dataclasses import FrozenInstanceError

import pytest

from refiner.errors import SettingError
from refiner.metrics import Thresholds


def test_the_papers_four() -> None:
    found = Thresholds()
    assert (found.psnr, found.ssim, found.lpips, found.noise) == (15.0, 0.5, 0.05, 0.4)
    with pytest.raises(FrozenInstanceError):
        found.psnr = 20.0  # type: ignore[misc]


def test_each_alone() -> None:
    """At the threshold itself something is visible."""
    at = {"psnr": 15.0, "ssim": 0.5, "lpips": 0.05, "noise": 0.4}
    hidden = {"psnr": 14.9, "ssim": 0.49, "lpips": 0.051, "noise": 0.41}
    assert all(Thresholds().visible(**at).values())
    assert not any(Thresholds().visible(**hidden).values())
    for name, value in at.items():
        found = Thresholds().visible(**(hidden | {name: value}))
        assert [n for n, seen in found.items() if seen] == [name]


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("psnr", -1, r"psnr = -1: expected a number in \[0, ∞\)"),
        ("ssim", 1.5, r"ssim = 1.5: expected a number in \[0, 1\]"),
        ("noise", float("nan"), r"noise = nan: expected a number in \[0, 1\]"),
        ("lpips", "low", r"lpips = 'low': expected a number in \[0, 1\]"),
        ("exposed_share", 5, r"exposed_share = 5: expected a number in \[0, 1\]"),
        ("identified", 0, r"identified = 0: expected a number in \(0, suspicious = 0.05\]"),
        ("identified", 0.1, r"identified = 0.1: expected a number in \(0, suspicious = 0.05\]"),
    ],
)
def test_wrong_values_are_one_line(field: str, value: object, message: str) -> None:
    with pytest.raises(SettingError, match=f"^{message}$"):
        Thresholds(**{field: value})  # type: ignore[arg-type]
