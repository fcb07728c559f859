"""MSE, PSNR and SSIM against torchmetrics, scikit-image and closed forms.

Both libraries take a second to import, so only the tests that compare with them do.
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from refiner.data import load_sample
from refiner.errors import DataError, SettingError
from refiner.metrics import mse, psnr, ssim

IMAGES = load_sample().images[:20]


def noisy(images: Tensor, deviation: float, seed: int = 0) -> Tensor:
    draws = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    return (images + deviation * draws).clamp(0, 1)


def image_pair(height: int, width: int, channels: int = 3) -> tuple[Tensor, Tensor]:
    """Noisy and real images of any size up to 64×64, each made of four."""
    tiled = IMAGES[:16].view(4, 2, 2, 3, 32, 32).permute(0, 3, 1, 4, 2, 5).reshape(4, 3, 64, 64)
    original = tiled[:, :channels, :height, :width].contiguous()
    return noisy(original, 0.1), original


def by_scikit_image(reconstructed: Tensor, original: Tensor) -> Tensor:
    from skimage.metrics import structural_similarity

    scores = [
        structural_similarity(
            a.double().numpy(),
            b.double().numpy(),
            gaussian_weights=True,
            sigma=1.5,
            use_sample_covariance=False,
            data_range=1.0,
            channel_axis=0,
        )
        for a, b in zip(reconstructed, original, strict=True)
    ]
    return torch.tensor(np.array(scores))


SIZES = [(32, 32, 3), (28, 28, 1), (28, 28, 3), (11, 11, 3), (16, 40, 3), (64, 64, 3)]


@pytest.mark.parametrize("size", SIZES)
def test_ssim_matches_scikit_image(size: tuple[int, int, int]) -> None:
    reconstructed, original = image_pair(*size)
    scores = ssim(reconstructed, original)
    torch.testing.assert_close(scores.double(), by_scikit_image(reconstructed, original), rtol=0, atol=1e-6)


@pytest.mark.parametrize("size", SIZES)
def test_ssim_matches_torchmetrics_inside_the_border(size: tuple[int, int, int]) -> None:
    """torchmetrics has a window around every pixel of the mirrored image; ours lie inside the image."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    reconstructed, original = image_pair(*size)
    _, everywhere = structural_similarity_index_measure(
        reconstructed, original, data_range=1.0, reduction="none", return_full_image=True
    )
    inside = everywhere[..., 5:-5, 5:-5].flatten(1).mean(1)
    torch.testing.assert_close(ssim(reconstructed, original), inside, rtol=0, atol=1e-4)


@pytest.mark.parametrize("size", SIZES)
def test_ssim_with_a_reflected_border_matches_torchmetrics(size: tuple[int, int, int]) -> None:
    from torchmetrics.image import StructuralSimilarityIndexMeasure

    reconstructed, original = image_pair(*size)
    reference = StructuralSimilarityIndexMeasure(data_range=1.0, reduction="none")(reconstructed, original)
    torch.testing.assert_close(ssim(reconstructed, original, "reflect"), reference, rtol=0, atol=1e-4)


def test_the_two_borders_give_different_scores() -> None:
    reconstructed = noisy(IMAGES, 0.1)
    difference = (ssim(reconstructed, IMAGES) - ssim(reconstructed, IMAGES, "reflect")).abs()
    assert 0.05 < difference.max() < 0.3


@pytest.mark.parametrize(("light", "dark"), [(0.9, 0.1), (0.5, 0.5), (1.0, 0.0), (0.3, 0.31)])
@pytest.mark.parametrize("border", ["valid", "reflect"])
def test_ssim_of_uniform_images_matches_a_closed_form(light: float, dark: float, border: str) -> None:
    a, b = (torch.full((1, 3, 16, 16), value, dtype=torch.float64) for value in (light, dark))
    expected = (2 * light * dark + 1e-4) / (light**2 + dark**2 + 1e-4)
    assert ssim(a, b, border).item() == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("size", [(10, 32), (32, 10), (1, 1)])
def test_images_smaller_than_the_window_raise(size: tuple[int, int]) -> None:
    images = torch.zeros(1, 3, *size)
    with pytest.raises(DataError) as caught:
        ssim(images, images)
    assert str(caught.value) == (
        f"images of {size[1]}×{size[0]} pixels: "
        "expected at least 11 pixels per side, the size of SSIM's window"
    )


def test_an_unknown_border_raises() -> None:
    with pytest.raises(SettingError, match="border = 'wrap': expected one of 'valid', 'reflect'"):
        ssim(IMAGES, IMAGES, "wrap")


@pytest.mark.parametrize("values", [1, 7 * 3 * 32 * 32])
def test_ssim_does_not_depend_on_the_chunk(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    reconstructed = noisy(IMAGES, 0.2)
    expected = ssim(reconstructed, IMAGES)
    monkeypatch.setattr("refiner.metrics.image.VALUES_AT_ONCE", values)
    torch.testing.assert_close(ssim(reconstructed, IMAGES), expected, rtol=0, atol=1e-7)


def test_mse_and_psnr_match_the_libraries() -> None:
    from skimage.metrics import mean_squared_error, peak_signal_noise_ratio
    from torchmetrics.image import PeakSignalNoiseRatio

    reconstructed = noisy(IMAGES, 0.1)
    pairs = [(a.numpy(), b.numpy()) for a, b in zip(reconstructed.double(), IMAGES.double(), strict=True)]
    errors = torch.tensor([mean_squared_error(b, a) for a, b in pairs])
    torch.testing.assert_close(mse(reconstructed, IMAGES).double(), errors.double(), rtol=1e-5, atol=0)
    decibels = torch.tensor([peak_signal_noise_ratio(b, a, data_range=1.0) for a, b in pairs])
    torch.testing.assert_close(psnr(reconstructed, IMAGES).double(), decibels.double(), rtol=0, atol=1e-4)
    reference = PeakSignalNoiseRatio(data_range=1.0, reduction="none", dim=(1, 2, 3))
    torch.testing.assert_close(
        psnr(reconstructed, IMAGES), reference(reconstructed, IMAGES), rtol=0, atol=1e-4
    )


@given(st.floats(0, 1), st.floats(0, 1))
def test_mse_and_psnr_of_uniform_images_match_closed_forms(a: float, b: float) -> None:
    first, second = (torch.full((1, 3, 4, 4), value, dtype=torch.float64) for value in (a, b))
    assert mse(first, second).item() == pytest.approx((a - b) ** 2, abs=1e-12)
    expected = 100.0 if abs(a - b) <= 1e-5 else min(100.0, -20 * np.log10(abs(a - b)))
    assert psnr(first, second).item() == pytest.approx(expected, abs=1e-6)


def test_psnr_is_capped_for_copies_only() -> None:
    """The smallest difference between two eight-bit images of 224×224."""
    original = torch.full((1, 3, 224, 224), 0.5)
    other = original.clone()
    other[0, 0, 0, 0] += 1 / 255
    assert psnr(original, original).item() == 100
    assert 99.8 < psnr(other, original).item() < 100


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.floats(0.02, 0.5))
def test_metrics_are_best_for_copies_and_symmetric(seed: int, deviation: float) -> None:
    original = IMAGES[:4]
    reconstructed = noisy(original, deviation, seed)
    for metric, best in ((mse, 0.0), (psnr, 100.0), (ssim, 1.0)):
        torch.testing.assert_close(metric(original, original), torch.full((4,), best), rtol=0, atol=1e-6)
        torch.testing.assert_close(metric(reconstructed, original), metric(original, reconstructed))
    assert (ssim(reconstructed, original) < 1).all()


@settings(max_examples=25)
@given(st.integers(0, 2**31), st.floats(0.01, 0.4), st.floats(1.3, 3))
def test_more_noise_scores_worse(seed: int, deviation: float, factor: float) -> None:
    less, more = (noisy(IMAGES[:4], d, seed) for d in (deviation, deviation * factor))
    original = IMAGES[:4]
    assert (mse(less, original) < mse(more, original)).all()
    assert (psnr(less, original) > psnr(more, original)).all()
    assert (ssim(less, original) > ssim(more, original)).all()


@settings(max_examples=25)
@given(st.permutations(range(6)))
def test_images_are_scored_independently(order: list[int]) -> None:
    reconstructed, original = noisy(IMAGES[:6], 0.2), IMAGES[:6]
    for metric in (mse, psnr, ssim):
        whole = metric(reconstructed, original)
        torch.testing.assert_close(metric(reconstructed[order], original[order]), whole[order])


def test_images_are_not_modified() -> None:
    reconstructed = noisy(IMAGES, 0.1)
    before = reconstructed.clone(), IMAGES.clone()
    for metric in (mse, psnr, ssim):
        metric(reconstructed, IMAGES)
    assert torch.equal(reconstructed, before[0]) and torch.equal(IMAGES, before[1])
