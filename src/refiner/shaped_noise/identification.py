"""Which of several known images lies under noise of a known covariance."""

from torch import Tensor

from refiner.errors import DataError
from refiner.metrics import Identification
from refiner.metrics.ranks import ranks_of_own
from refiner.shaped_noise.natural_noise import NaturalNoise


def identify_under_noise(noisy: Tensor, candidates: Tensor, noise: NaturalNoise) -> Identification:
    """Rank the image under each noisy one among candidates by its likelihood.

    No other match with x + s·n does better: the covariance of the noise is public. It needs candidates that
    the attacker already has.

    Args:
        noisy: `[N, C, H, W]`.
        candidates: `[M, C, H, W]`, M ≥ N; the n-th is the image under the n-th noisy one.
        noise: The noise, of any strength.

    Returns:
        The ranks `[N]` and the number of candidates.

    Raises:
        DataError: The shapes do not fit.

    >>> import torch
    >>> images, noise = torch.rand(20, 3, 32, 32), NaturalNoise.bundled()
    >>> identify_under_noise(images + noise(torch.randn(20, 3, 32, 32)), images, noise).top1
    1.0
    """
    for name, images in (("noisy", noisy), ("candidates", candidates)):
        if tuple(images.shape[1:]) != noise.shape:
            raise DataError(field=name, value=list(images.shape), expected=f"images of shape {noise.shape}")
    if len(candidates) < max(2, len(noisy)):
        raise DataError(
            field="candidates", value=len(candidates), expected=f"{max(2, len(noisy))} or more images"
        )
    rows, known = (noise.whiten(images.to(noise.mean)).flatten(1).double() for images in (noisy, candidates))
    # The log-likelihood up to what all candidates share.
    likelihood = rows @ known.mT - known.square().sum(1) / 2
    return Identification("likelihood", ranks_of_own(likelihood, 0), len(candidates))
