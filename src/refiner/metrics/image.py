"""Pixels against pixels: MSE, PSNR, SSIM."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner.checks import choice
from refiner.errors import DataError
from refiner.metrics.pairs import check_pair

CAP = 100.0
WINDOW, SIGMA = 11, 1.5
K1, K2 = 0.01, 0.03
BORDERS = ("valid", "reflect")
# Bounds the memory of the blurred maps.
VALUES_AT_ONCE = 2**22


def mse(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Mean squared error of each image, `[N]`: 0 for a copy, at most 1.

    >>> mse(torch.zeros(2, 3, 8, 8), torch.full((2, 3, 8, 8), 0.5)).tolist()
    [0.25, 0.25]
    """
    reconstructed, original = check_pair(reconstructed, original)
    return (reconstructed - original).square().flatten(1).mean(1)


def psnr(reconstructed: Tensor, original: Tensor) -> Tensor:
    """Peak signal-to-noise ratio of each image in dB, `[N]`, for a data range of 1: −10·log10(MSE).

    A copy would be infinite and swallow every mean, so the value is capped at 100 dB. One grey level in one
    channel of one pixel of a 224×224 image is 99.9 dB: nothing that is no copy is capped up to that size.

    >>> psnr(torch.zeros(1, 3, 8, 8), torch.full((1, 3, 8, 8), 0.1))
    tensor([20.])
    >>> psnr(torch.ones(1, 3, 8, 8), torch.ones(1, 3, 8, 8))
    tensor([100.])
    """
    return -10 * mse(reconstructed, original).clamp_min(10 ** (-CAP / 10)).log10()


def ssim(reconstructed: Tensor, original: Tensor, border: str = "valid") -> Tensor:
    """Structural similarity of each image, `[N]`: 1 for a copy, about 0 for an unrelated one, at least −1.

    Gaussian window of 11 pixels, σ 1.5, K1 0.01, K2 0.03, data range 1, the mean over the channels. `border`
    says which windows count. "valid": those that lie wholly in the image, as Wang et al. (2004) and
    scikit-image (`gaussian_weights`, population covariance) have it. "reflect": one around every pixel of the
    mirrored image, which is torchmetrics' number. Inside, all three agree; of 32×32 pixels more than half
    are border, and the two means differ by up to 0.2. Images need 11 pixels a side.

    >>> image = torch.rand(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> ssim(image, image).item(), round(ssim(1 - image, image).item(), 2)
    (1.0, -0.97)
    """
    choice("border", border, BORDERS)
    reconstructed, original = check_pair(reconstructed, original)
    if min(original.shape[2:]) < WINDOW:
        height, width = original.shape[2:]
        raise DataError(
            f"images of {width}×{height} pixels: SSIM needs {WINDOW} a side, the size of its window"
        )
    across, down = (
        _blur(side, border).to(original.device) for side in (original.shape[3], original.shape[2])
    )
    chunk = max(1, VALUES_AT_ONCE // math.prod(original.shape[1:]))
    pairs = zip(torch.split(reconstructed, chunk), torch.split(original, chunk), strict=True)
    return torch.cat([_similarity(a.double(), b.double(), down, across) for a, b in pairs]).to(original.dtype)


def _similarity(a: Tensor, b: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """SSIM in float64: a variance is a small difference of large means, and flat images show it."""

    def blur(maps: Tensor) -> Tensor:
        return down @ maps @ across.mT

    mean_a, mean_b = blur(a), blur(b)
    variances = blur(a * a + b * b) - mean_a**2 - mean_b**2
    covariance = blur(a * b) - mean_a * mean_b
    light = (2 * mean_a * mean_b + K1**2) / (mean_a**2 + mean_b**2 + K1**2)
    structure = (2 * covariance + K2**2) / (variances + K2**2)
    return (light * structure).flatten(1).mean(1)


def _blur(side: int, border: str) -> Tensor:
    """The window along one side as a matrix `[positions, side]`: a row is one place of the window."""
    steps = torch.arange(WINDOW, dtype=torch.float64) - WINDOW // 2
    window = (-(steps**2) / (2 * SIGMA**2)).exp()
    pixels = torch.eye(side, dtype=torch.float64)[:, None]
    if border == "reflect":
        pixels = F.pad(pixels, (WINDOW // 2, WINDOW // 2), mode="reflect")
    return F.conv1d(pixels, (window / window.sum())[None, None])[:, 0].T.contiguous()
