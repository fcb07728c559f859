"""The best linear filter that treats the frequencies of an image independently: a Wiener filter from data."""

from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.shaped_noise.cosine_transform import dct, inverse_dct

# Added to a covariance as a share of its mean variance: some frequencies may be constant.
_RIDGE = 1e-6
_IMAGES_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class FrequencyFilter:
    """Estimates images from degraded ones: at every frequency the colours are mixed by one matrix.

    Args:
        gain: `[H, W, C, C]`.
        degraded_mean: The mean degraded image `[C, H, W]`.
        clean_mean: The mean image `[C, H, W]`.

    >>> clean = torch.rand(400, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    >>> estimate = FrequencyFilter.fit(2 * clean + 1, clean)(2 * clean + 1)
    >>> torch.allclose(estimate, clean, atol=1e-3)
    True
    """

    gain: Tensor
    degraded_mean: Tensor
    clean_mean: Tensor

    @classmethod
    def fit(cls, degraded: Tensor, clean: Tensor) -> "FrequencyFilter":
        """Return the filter with the lowest mean squared error on pairs of images.

        Args:
            degraded: `[N, C, H, W]`.
            clean: What they were made of, `[N, C, H, W]`.
        """
        degraded_mean, clean_mean = degraded.mean(0), clean.mean(0)
        channels, height, width = clean_mean.shape
        covariance = clean.new_zeros(height, width, channels, channels, dtype=torch.float64)
        cross = torch.zeros_like(covariance)
        for d, c in zip(*(torch.split(t, _IMAGES_AT_ONCE) for t in (degraded, clean)), strict=True):
            before, after = (dct(t.double()).permute(2, 3, 1, 0) for t in (d - degraded_mean, c - clean_mean))
            covariance += before @ before.mT
            cross += after @ before.mT
        variance = covariance.diagonal(dim1=-2, dim2=-1).mean().clamp_min(1e-30)
        identity = torch.eye(channels, dtype=torch.float64, device=clean.device)
        gain = torch.linalg.solve(covariance + _RIDGE * variance * identity, cross.mT).mT
        return cls(gain.to(clean.dtype), degraded_mean, clean_mean)

    def __call__(self, degraded: Tensor) -> Tensor:
        """Return the estimates `[N, C, H, W]` of degraded images; they are not clamped."""
        coefficients = dct(degraded - self.degraded_mean).movedim(-3, -1)[..., None]
        return inverse_dct((self.gain @ coefficients)[..., 0].movedim(-1, -3)) + self.clean_mean
