"""Shaped noise against SciPy's cosine transform and the covariance of images; files and bad input."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from refiner.data import load_sample
from refiner.errors import DataError, SettingError
from refiner.shaped_noise import NaturalNoise
from refiner.shaped_noise.cosine_transform import dct, inverse_dct


def white(count: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))


def test_the_cosine_transform_equals_scipys() -> None:
    import scipy.fft

    images = torch.rand(4, 3, 9, 7, dtype=torch.float64)
    expected = scipy.fft.dctn(images.numpy(), axes=(-2, -1), norm="ortho")
    np.testing.assert_allclose(dct(images).numpy(), expected, atol=1e-12)
    torch.testing.assert_close(inverse_dct(dct(images)), images)


@pytest.mark.processes
def test_noise_has_the_covariance_of_the_images_at_every_frequency() -> None:
    images = load_sample().images
    noise = NaturalNoise.fit(images)
    drawn = noise(white(4000, 3, 32, 32))
    for frequency in [(0, 0), (0, 1), (3, 2), (15, 0), (31, 31)]:
        rows, columns = frequency
        real, made = (dct(t)[:, :, rows, columns] for t in (images, drawn))
        torch.testing.assert_close(torch.cov(made.T), torch.cov(real.T), rtol=0.15, atol=2e-4)
    assert float(drawn.var(0).mean() / images.var(0).mean()) == pytest.approx(1, abs=0.02)


def test_opposite_edges_are_as_independent_as_those_of_images() -> None:
    """Noise with a periodic spectrum would tie them to each other."""
    drawn = NaturalNoise.bundled()(white(2000, 3, 32, 32))[:, 0]
    neighbours = torch.corrcoef(torch.stack([drawn[:, 16, 0], drawn[:, 16, 1]]))[0, 1]
    edges = torch.corrcoef(torch.stack([drawn[:, 16, 0], drawn[:, 16, 31]]))[0, 1]
    images = load_sample().images[:, 0]
    real = torch.corrcoef(torch.stack([images[:, 16, 0], images[:, 16, 31]]))[0, 1]
    assert neighbours > 0.9 and abs(float(edges - real)) < 0.2


def test_whitening_inverts_shaping() -> None:
    noise = copy.deepcopy(NaturalNoise.bundled()).double()
    draws = white(5, 2, 3, 32, 32).double()
    torch.testing.assert_close(noise.whiten(noise(draws)), draws, rtol=1e-6, atol=1e-6)


def test_a_white_part_adds_its_variance_at_every_frequency() -> None:
    shaped = NaturalNoise.bundled()
    drawn = dct(shaped.with_white(0.5)(white(2000, 3, 32, 32)))
    variance = shaped.covariance.diagonal(dim1=-2, dim2=-1).permute(2, 0, 1) + 0.25
    assert (drawn.var(0) / variance - 1).abs().max() < 0.2
    assert shaped.with_white(0) is shaped
    with pytest.raises(SettingError, match="deviation = -1: expected a number in"):
        shaped.with_white(-1)


@pytest.mark.parametrize("shape", [(3, 28, 28), (3, 64, 64), (3, 32, 48)])
def test_another_size_keeps_the_variance_of_a_pixel(shape: tuple[int, int, int]) -> None:
    bundled = NaturalNoise.bundled()
    resized = bundled.for_shape(shape)
    variance = float(resized(white(300, *shape)).var())
    assert resized.shape == shape
    assert variance == pytest.approx(float(bundled(white(300, 3, 32, 32)).var()), rel=0.15)


@pytest.mark.parametrize("white", [0.0, 0.1, 0.6])
def test_the_distance_between_images_is_that_of_drawn_ones(white: float) -> None:
    images = NaturalNoise.bundled()
    noise = images.with_white(white)
    first, second = images(torch.randn(2, 400, 3, 32, 32, generator=torch.Generator().manual_seed(0)))
    drawn = noise.whiten(first - second).flatten(1).square().sum(1).mean().sqrt()
    assert noise.distance_between(images) == pytest.approx(float(drawn), rel=0.03)
    with pytest.raises(DataError, match=r"images = .*: expected"):
        noise.distance_between(images.for_shape((3, 16, 16)))


def test_statistics_can_be_saved_and_loaded(tmp_path: Path) -> None:
    fitted = NaturalNoise.fit(load_sample().images)
    fitted.save(tmp_path / "noise.safetensors")
    loaded = NaturalNoise.load(tmp_path / "noise.safetensors")
    draws = white(2, 3, 32, 32)
    assert torch.equal(loaded(draws), fitted(draws))


def test_bad_input_is_one_line_that_names_it(tmp_path: Path) -> None:
    cases = [
        (lambda: NaturalNoise.bundled().for_shape((1, 28, 28)), "statistics", "refiner noise fit"),
        (lambda: NaturalNoise.fit(torch.rand(99, 3, 8, 8)), "images", "100 images or more"),
        (lambda: NaturalNoise.fit(2 * torch.rand(100, 3, 8, 8)), "images", "0..1"),
        (lambda: NaturalNoise.fit(torch.full((100, 3, 8, 8), torch.nan)), "images", "0..1"),
        (lambda: NaturalNoise.fit(torch.full((100, 3, 8, 8), 0.5)), "images", "differ"),
        (lambda: NaturalNoise(torch.zeros(8, 8, 3, 3), torch.zeros(3, 8, 8)), "covariance", "positive"),
        (lambda: NaturalNoise(torch.ones(8, 8, 3, 3), torch.zeros(1, 8, 8)), "covariance", "[C, H, W]"),
        (lambda: NaturalNoise.load(tmp_path / "none"), "statistics", "noise statistics"),
    ]
    for attempt, field, text in cases:
        with pytest.raises(DataError) as raised:
            attempt()
        assert raised.value.field == field and text in str(raised.value) and "\n" not in str(raised.value)
