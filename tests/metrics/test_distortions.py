"""Distortions in closed form, and the paper's claims about their scores."""

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
    DistortionScores,
    _hue_rotation,
    colour_jitter,
    distortion_table,
    flip,
    noise,
    rotate,
    scale,
    shift,
)

IMAGES = load_sample().images[:20]


@pytest.fixture(scope="module")
def rows() -> dict[str, DistortionScores]:
    return {row.name: row for row in distortion_table(IMAGES[:10])}


@pytest.mark.parametrize("pixels", [0, 1, 5, 31])
def test_shift_moves_to_the_top_left(pixels: int) -> None:
    shifted = shift(IMAGES, pixels)
    rest = 32 - pixels
    assert torch.equal(shifted[..., :rest, :rest], IMAGES[..., pixels:, pixels:])
    assert torch.equal(shifted[..., -1, :rest], IMAGES[..., -1, pixels:])


@settings(max_examples=25)
@given(st.floats(0, 1))
def test_the_error_of_scale_matches_a_closed_form(factor: float) -> None:
    torch.testing.assert_close(
        mse(scale(IMAGES, factor), IMAGES),
        (1 - factor) ** 2 * IMAGES.square().mean((1, 2, 3)),
        rtol=1e-3,
        atol=1e-7,
    )


def test_scale_stays_in_range() -> None:
    assert scale(IMAGES, 5.0).max() == 1


def test_noise_is_seeded_and_has_its_deviation() -> None:
    grey = torch.full((4, 3, 64, 64), 0.5)
    assert torch.equal(noise(grey, 0.1, seed=3), noise(grey, 0.1, seed=3))
    assert not torch.equal(noise(grey, 0.1, seed=3), noise(grey, 0.1, seed=4))
    assert mse(noise(grey, 0.1), grey).mean() == pytest.approx(0.01, rel=0.05)
    assert noise(grey.double()).dtype == torch.float64


def test_rotations_by_quarter_turns_are_exact() -> None:
    torch.testing.assert_close(rotate(IMAGES, 90), IMAGES.rot90(1, (2, 3)), rtol=0, atol=1e-4)
    torch.testing.assert_close(rotate(IMAGES, -90), IMAGES.rot90(-1, (2, 3)), rtol=0, atol=1e-4)
    torch.testing.assert_close(rotate(IMAGES, 180), IMAGES.rot90(2, (2, 3)), rtol=0, atol=1e-4)
    torch.testing.assert_close(rotate(IMAGES, 0), IMAGES, rtol=0, atol=1e-4)


def test_rotations_of_images_that_are_not_square_are_rigid() -> None:
    """A disc around the centre remains a disc."""
    y, x = torch.meshgrid(torch.arange(40) - 19.5, torch.arange(60) - 29.5, indexing="ij")
    disc = torch.exp(-(x**2 + y**2) / 50)[None, None]
    torch.testing.assert_close(rotate(disc, 33), disc, rtol=0, atol=0.02)


def test_flipping_twice_restores_the_image() -> None:
    assert torch.equal(flip(flip(IMAGES)), IMAGES)
    assert torch.equal(flip(IMAGES)[..., 0], IMAGES[..., -1])


def test_colour_jitter_is_seeded_and_in_range() -> None:
    torch.testing.assert_close(colour_jitter(IMAGES, 0.0), IMAGES, rtol=0, atol=1e-5)
    jittered = colour_jitter(IMAGES, seed=1)
    assert torch.equal(jittered, colour_jitter(IMAGES, seed=1))
    assert not torch.equal(jittered, colour_jitter(IMAGES, seed=2))
    assert jittered.min() >= 0 and jittered.max() <= 1
    # Each image has its own draws: twenty copies become twenty different images.
    copies = colour_jitter(IMAGES[:1].expand(20, -1, -1, -1))
    assert len({tuple(copy.mean((1, 2)).tolist()) for copy in copies}) == 20


def test_hue_is_rotated_around_the_grey_axis() -> None:
    """A third of a turn maps red to green, green to blue and blue to red; grey and norms are preserved."""
    rotation = _hue_rotation(torch.tensor([2 * math.pi / 3, 0.7]))
    cycle = torch.eye(3).roll(1, 0)
    torch.testing.assert_close(rotation[0], cycle, rtol=0, atol=1e-6)
    torch.testing.assert_close(rotation[1] @ rotation[1].T, torch.eye(3), rtol=0, atol=1e-6)
    torch.testing.assert_close(rotation.sum(2), torch.ones(2, 3), rtol=0, atol=1e-6)


def test_colour_jitter_keeps_grey_images_grey() -> None:
    grey = IMAGES.mean(1, keepdim=True)
    jittered = colour_jitter(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(jittered, jittered[:, :1].expand(-1, 3, -1, -1), rtol=0, atol=1e-5)
    assert colour_jitter(grey).shape == grey.shape
    assert not torch.allclose(colour_jitter(grey), grey, atol=0.01)


def test_the_table_has_all_rows_and_cells(rows: dict[str, DistortionScores]) -> None:
    assert list(rows)[:7] == ["none", "shift", "scale", "noise", "rotation", "flip", "colour jitter"]
    for row in rows.values():
        assert len(row.cells()) == len(COLUMNS)
        assert row.mse == pytest.approx(float(row.cells()[1]), abs=1e-4)
    assert rows["none"].cells()[:5] == ("none", "0.0000", "100.0", "1.000", "0.000")
    assert "another image" not in {row.name for row in distortion_table(IMAGES[:1])}


def test_the_table_is_seeded() -> None:
    first, repeated, other = (distortion_table(IMAGES[:1], seed=seed) for seed in (1, 1, 2))
    assert first == repeated != other


def test_the_errors_of_the_papers_figure_3(rows: dict[str, DistortionScores]) -> None:
    """Shift and scale preserve the content but have a higher MSE than noise: 0.025, 0.106 and 0.004 there."""
    assert rows["scale"].mse == pytest.approx(0.106, rel=0.15)
    assert rows["noise"].mse == pytest.approx(0.004, rel=0.1)
    assert rows["noise"].mse < rows["shift"].mse < rows["scale"].mse


def test_the_scores_of_the_papers_appendix(rows: dict[str, DistortionScores]) -> None:
    """Rotation lowers SSIM to 0.1, colour jitter raises LPIPS over its threshold; the content remains."""
    assert rows["rotation"].ssim < 0.15
    assert rows["colour jitter"].lpips > 0.05


def test_misleading_scores(rows: dict[str, DistortionScores]) -> None:
    """A clean but wrong image has no noise; a uniform colour beats near-copies in PSNR."""
    assert rows["another image"].noise < 0.1 and rows["another image"].mse > 0.05
    assert rows["own mean colour"].psnr > max(rows["rotation"].psnr, rows["scale"].psnr)


def test_invalid_input_raises() -> None:
    with pytest.raises(DataError, match="images: NaN or infinity"):
        distortion_table(IMAGES * torch.nan)
    with pytest.raises(DataError, match="28 to 224 pixels per side"):
        distortion_table(torch.zeros(1, 3, 20, 20))
    for call, message in (
        (lambda: shift(IMAGES, 32), r"pixels = 32: expected an integer in \[0, 31\]"),
        (lambda: scale(IMAGES, -1), r"factor = -1: expected a number in \[0, ∞\)"),
        (lambda: noise(IMAGES, -1), r"deviation = -1: expected a number in \[0, ∞\)"),
        (lambda: rotate(IMAGES, 1000), r"degrees = 1000: expected a number in \[-360, 360\]"),
        (lambda: colour_jitter(IMAGES, 2), r"strength = 2: expected a number in \[0, 1\]"),
        (lambda: colour_jitter(IMAGES, seed=-1), "seed = -1: expected an integer in"),
    ):
        with pytest.raises(SettingError, match=message):
            call()
