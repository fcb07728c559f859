"""Distortions in closed form, and the paper's claims about what metrics make of them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from refiner.data import load_sample
from refiner.errors import DataError, SettingError
from refiner.metrics import mse
from refiner.metrics.distortions import (
    COLUMNS,
    Row,
    _hue_turn,
    colour_jitter,
    flip,
    noise,
    rotate,
    scale,
    shift,
    table,
)

PICTURES = load_sample().images[:20]


@pytest.fixture(scope="module")
def rows() -> dict[str, Row]:
    return {row.name: row for row in table(PICTURES[:10])}


@pytest.mark.parametrize("pixels", [0, 1, 5, 31])
def test_shift(pixels: int) -> None:
    moved = shift(PICTURES, pixels)
    rest = 32 - pixels
    assert torch.equal(moved[..., :rest, :rest], PICTURES[..., pixels:, pixels:])
    assert torch.equal(moved[..., -1, :rest], PICTURES[..., -1, pixels:])


@settings(max_examples=25)
@given(st.floats(0, 1))
def test_scale_in_closed_form(factor: float) -> None:
    torch.testing.assert_close(
        mse(scale(PICTURES, factor), PICTURES),
        (1 - factor) ** 2 * PICTURES.square().mean((1, 2, 3)),
        rtol=1e-3,
        atol=1e-7,
    )


def test_scale_stays_in_range() -> None:
    assert scale(PICTURES, 5.0).max() == 1


def test_noise_is_seeded_and_has_its_deviation() -> None:
    grey = torch.full((4, 3, 64, 64), 0.5)
    assert torch.equal(noise(grey, 0.1, seed=3), noise(grey, 0.1, seed=3))
    assert not torch.equal(noise(grey, 0.1, seed=3), noise(grey, 0.1, seed=4))
    assert mse(noise(grey, 0.1), grey).mean() == pytest.approx(0.01, rel=0.05)
    assert noise(grey.double()).dtype == torch.float64


def test_quarter_turns_are_exact() -> None:
    torch.testing.assert_close(rotate(PICTURES, 90), PICTURES.rot90(1, (2, 3)), rtol=0, atol=1e-4)
    torch.testing.assert_close(rotate(PICTURES, -90), PICTURES.rot90(-1, (2, 3)), rtol=0, atol=1e-4)
    torch.testing.assert_close(rotate(PICTURES, 180), PICTURES.rot90(2, (2, 3)), rtol=0, atol=1e-4)
    torch.testing.assert_close(rotate(PICTURES, 0), PICTURES, rtol=0, atol=1e-4)


def test_turns_are_rigid_in_images_that_are_not_square() -> None:
    """A disc around the centre stays one."""
    y, x = torch.meshgrid(torch.arange(40) - 19.5, torch.arange(60) - 29.5, indexing="ij")
    disc = torch.exp(-(x**2 + y**2) / 50)[None, None]
    torch.testing.assert_close(rotate(disc, 33), disc, rtol=0, atol=0.02)


def test_flip_twice_is_nothing() -> None:
    assert torch.equal(flip(flip(PICTURES)), PICTURES)
    assert torch.equal(flip(PICTURES)[..., 0], PICTURES[..., -1])


def test_colour_jitter() -> None:
    torch.testing.assert_close(colour_jitter(PICTURES, 0.0), PICTURES, rtol=0, atol=1e-5)
    jittered = colour_jitter(PICTURES, seed=1)
    assert torch.equal(jittered, colour_jitter(PICTURES, seed=1))
    assert not torch.equal(jittered, colour_jitter(PICTURES, seed=2))
    assert jittered.min() >= 0 and jittered.max() <= 1
    # Each image has draws of its own: twenty copies become twenty images.
    copies = colour_jitter(PICTURES[:1].expand(20, -1, -1, -1))
    assert len({tuple(copy.mean((1, 2)).tolist()) for copy in copies}) == 20


def test_hue_turns_around_grey() -> None:
    """A third of a turn makes red green, green blue and blue red; every turn keeps lengths and grey."""
    turn = _hue_turn(torch.tensor([2 * math.pi / 3, 0.7]))
    cycle = torch.eye(3).roll(1, 0)
    torch.testing.assert_close(turn[0], cycle, rtol=0, atol=1e-6)
    torch.testing.assert_close(turn[1] @ turn[1].T, torch.eye(3), rtol=0, atol=1e-6)
    torch.testing.assert_close(turn.sum(2), torch.ones(2, 3), rtol=0, atol=1e-6)


def test_grey_stays_grey() -> None:
    grey = PICTURES.mean(1, keepdim=True)
    jittered = colour_jitter(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(jittered, jittered[:, :1].expand(-1, 3, -1, -1), rtol=0, atol=1e-5)
    assert colour_jitter(grey).shape == grey.shape
    assert not torch.allclose(colour_jitter(grey), grey, atol=0.01)


def test_the_rows_and_their_cells(rows: dict[str, Row]) -> None:
    assert list(rows)[:7] == ["none", "shift", "scale", "noise", "rotation", "flip", "colour jitter"]
    for row in rows.values():
        assert len(row.cells()) == len(COLUMNS)
        assert row.mse == pytest.approx(float(row.cells()[1]), abs=1e-4)
    assert rows["none"].cells()[:5] == ("none", "0.0000", "100.0", "1.000", "0.000")
    assert "another image" not in {row.name for row in table(PICTURES[:1])}


def test_the_table_is_seeded() -> None:
    few = PICTURES[:1]
    assert table(few, seed=1) == table(few, seed=1) != table(few, seed=2)


def test_figure_3(rows: dict[str, Row]) -> None:
    """Shift and scale change little to the eye and more in MSE than noise: 0.025, 0.106 and 0.004 there."""
    assert rows["scale"].mse == pytest.approx(0.106, rel=0.15)
    assert rows["noise"].mse == pytest.approx(0.004, rel=0.1)
    assert rows["noise"].mse < rows["shift"].mse < rows["scale"].mse


def test_the_appendix(rows: dict[str, Row]) -> None:
    """Rotation brings SSIM to 0.1, colour jitter LPIPS over its threshold; both still show everything."""
    assert rows["rotation"].ssim < 0.15
    assert rows["colour jitter"].lpips > 0.05


def test_where_metrics_mislead(rows: dict[str, Row]) -> None:
    """A clean but wrong image has no noise; a flat colour beats real near-copies in PSNR."""
    assert rows["another image"].noise < 0.1 and rows["another image"].mse > 0.05
    assert rows["own mean colour"].psnr > max(rows["rotation"].psnr, rows["scale"].psnr)


def test_bad_input() -> None:
    with pytest.raises(DataError, match="images: NaN or infinity"):
        table(PICTURES * torch.nan)
    with pytest.raises(DataError, match="28 to 224 pixels a side"):
        table(torch.zeros(1, 3, 20, 20))
    for call, message in (
        (lambda: shift(PICTURES, 32), r"pixels = 32: expected an integer in \[0, 31\]"),
        (lambda: scale(PICTURES, -1), r"factor = -1: expected a number in \[0, ∞\)"),
        (lambda: noise(PICTURES, -1), r"deviation = -1: expected a number in \[0, ∞\)"),
        (lambda: rotate(PICTURES, 1000), r"degrees = 1000: expected a number in \[-360, 360\]"),
        (lambda: colour_jitter(PICTURES, 2), r"strength = 2: expected a number in \[0, 1\]"),
        (lambda: colour_jitter(PICTURES, seed=-1), "seed = -1: expected an integer in"),
    ):
        with pytest.raises(SettingError, match=message):
            call()
