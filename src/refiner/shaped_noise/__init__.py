"""Noise shaped like images: Gaussian, with the covariance of natural images at every spatial frequency.

A filter or a network removes white noise from an image, because it knows what images look like. Noise that
has the images' own covariance can't be told from them by their second moments: of data that were Gaussian the
best estimator leaves s² / (1 + s²) of the variance unexplained at strength s.
"""

from refiner.shaped_noise.identification import identify_under_noise
from refiner.shaped_noise.natural_noise import NaturalNoise
from refiner.shaped_noise.prediction import MIN_PREDICTED, Prediction, predict_psnr, wiener_estimate

NOISE_STATISTICS = "noise statistics"
"""Under which name a defence lists its noise among its networks."""

__all__ = [
    "MIN_PREDICTED",
    "NOISE_STATISTICS",
    "NaturalNoise",
    "Prediction",
    "identify_under_noise",
    "predict_psnr",
    "wiener_estimate",
]
