"""Metrics on pixels: MSE, PSNR and SSIM."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner.checks import choice
from refiner.errors import DataError
from refiner.metrics.image_checks import check_pair

MAX_PSNR = 100.0
WINDOW, SIGMA = 11, 1.5
K1, K2 = 0.01, 0.03
BORDERS = ("valid", "reflect")
# Bounds the memory of the blurred maps.
VALUES_AT_ONCE = 2**22


def mse(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Return the mean squared error of each image: 0 for a copy, at most 1.

    Args:
        reconstructed: `[N, C, H, W]` in 0..1.
        original: `[N, C, H, W]` in 0..1; the n-th reconstruction belongs to the n-th original.

    Returns:
        `[N]`.

    >>> mse(torch.zeros(2, 3, 8, 8), torch.full((2, 3, 8, 8), 0.5)).tolist()
    [0.25, 0.25]
    """
    reconstructed, original = check_pair(reconstructed, original)
    return (reconstructed - original).square().flatten(1).mean(1)


def psnr(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio of each image in dB: −10·log10(MSE) for a data range of 1.

    A copy would score infinity and dominate every mean, so that the value is capped at 100 dB. One grey level
    in one channel of one pixel of a 224×224 image is 99.9 dB: up to that size only copies are capped.

    Args:
        reconstructed: `[N, C, H, W]` in 0..1.
        original: `[N, C, H, W]` in 0..1; the n-th reconstruction belongs to the n-th original.

    Returns:
        `[N]`, at most 100.

    >>> psnr(torch.zeros(1, 3, 8, 8), torch.full((1, 3, 8, 8), 0.1))
    tensor([20.])
    >>> psnr(torch.ones(1, 3, 8, 8), torch.ones(1, 3, 8, 8))
    tensor([100.])
    """
    return -10 * mse(reconstructed, original).clamp_min(10 ** (-MAX_PSNR / 10)).log10()


def ssim(reconstructed: Tensor, original: Tensor, border: str = "valid") -> Tensor:
    """Return the structural similarity of each image: 1 for a copy, about 0 for an unrelated image.

    Wang, Bovik, Sheikh and Simoncelli, "Image Quality Assessment: From Error Visibility to Structural
    Similarity", IEEE TIP 2004. Gaussian window of 11 pixels, σ 1.5, K1 0.01, K2 0.03, data range 1, averaged
    over the channels. At 32×32 more than half of the pixels belong to the border, and the two choices of
    `border` differ by up to 0.2.

    Args:
        reconstructed: `[N, C, H, W]` in 0..1, with at least 11 pixels per side.
        original: `[N, C, H, W]` in 0..1; the n-th reconstruction belongs to the n-th original.
        border: "valid" averages over the windows that lie fully inside the image, as the paper and
            scikit-image (`gaussian_weights`, population covariance) do. "reflect" averages over a window
            around every pixel of the mirrored image, as torchmetrics does.

    Returns:
        `[N]` in −1..1.

    >>> image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> ssim(image, image).item(), round(ssim(1 - image, image).item(), 2)
    (1.0, -0.97)
    """
    choice("border", border, BORDERS)
    reconstructed, original = check_pair(reconstructed, original)
    if min(original.shape[2:]) < WINDOW:
        height, width = original.shape[2:]
        expected = f"at least {WINDOW} pixels per side, the size of SSIM's window"
        raise DataError(
            f"images of {width}×{height} pixels: expected {expected}",
            field="original",
            value=f"{width}×{height} pixels",
            expected=expected,
        )
    blur_rows, blur_columns = (
        _blur_matrix(side, border).to(original.device) for side in (original.shape[3], original.shape[2])
    )
    chunk = max(1, VALUES_AT_ONCE // math.prod(original.shape[1:]))
    pairs = zip(torch.split(reconstructed, chunk), torch.split(original, chunk), strict=True)
    scores = [_similarity(a.double(), b.double(), blur_columns, blur_rows) for a, b in pairs]
    return torch.cat(scores).to(original.dtype)


def _similarity(a: Tensor, b: Tensor, blur_columns: Tensor, blur_rows: Tensor) -> Tensor:
    """SSIM in float64: a variance is a small difference of large means, which matters for uniform images."""

    def blur(maps: Tensor) -> Tensor:
        return blur_columns @ maps @ blur_rows.mT

    mean_a, mean_b = blur(a), blur(b)
    variances = blur(a * a + b * b) - mean_a**2 - mean_b**2
    covariance = blur(a * b) - mean_a * mean_b
    luminance = (2 * mean_a * mean_b + K1**2) / (mean_a**2 + mean_b**2 + K1**2)
    structure = (2 * covariance + K2**2) / (variances + K2**2)
    return (luminance * structure).flatten(1).mean(1)


def _blur_matrix(side: int, border: str) -> Tensor:
    """The Gaussian window along one side as a matrix `[positions, side]`, one row for each position."""
    offsets = torch.arange(WINDOW, dtype=torch.float64) - WINDOW // 2
    window = (-(offsets**2) / (2 * SIGMA**2)).exp()
    pixels = torch.eye(side, dtype=torch.float64)[:, None]
    if border == "reflect":
        pixels = F.pad(pixels, (WINDOW // 2, WINDOW // 2), mode="reflect")
    return F.conv1d(pixels, (window / window.sum())[None, None])[:, 0].T.contiguous()
