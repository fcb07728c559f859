"""Identification: is a reconstruction closer to its own original than to other candidates?"""

import torch
from torch import Tensor

from refiner.checks import choice, integer
from refiner.errors import DataError
from refiner.metrics.image_checks import check_images, check_pair, check_same_image_shape, check_same_shape
from refiner.metrics.likelihood import identify_by_likelihood
from refiner.metrics.perceptual import features
from refiner.metrics.ranks import Identification, ranks_of_own

METHODS = ("pixels", "lpips", "likelihood")
# A standard deviation below this is the rounding error of a uniform image.
_UNIFORM = 1e-6


def identify(
    reconstructed: Tensor,
    original: Tensor,
    by: str = "pixels",
    *,
    others: Tensor | None = None,
    noise: Tensor | None = None,
    chunk: int = 256,
) -> Identification:
    """Rank each reconstruction's own original among all originals and further candidates.

    Args:
        reconstructed: `[N, C, H, W]` in 0..1; for "likelihood" the noisy images themselves, in any range.
        original: `[N, C, H, W]` in 0..1; the n-th reconstruction belongs to the n-th original.
        by: "pixels" ranks by the Pearson correlation of pixels, each channel centred. Brightness, contrast
            and a uniform colour have no effect, and a uniform reconstruction gets the middle rank. It finds
            an image under noise that hides it from the eye. "lpips" ranks by LPIPS, which finds a mirrored,
            rotated or shifted image but tolerates little noise. "likelihood" ranks by the likelihood of what
            is left of a noisy image without the candidate, under Gaussian noise like `noise`; see
            `identify_by_likelihood`, which does the same for uploads.
        others: Further candidates `[M, C, H, W]` of the same kind that are no victims. With few candidates a
            leak can't be distinguished from chance.
        noise: Draws of the noise `[R, C, H, W]` on images that are no candidates, for "likelihood" only.
        chunk: Reconstructions compared at a time. The features of all candidates are in memory at once.

    Returns:
        The ranks `[N]` and the number of candidates.

    Raises:
        DataError: The images are invalid, or there is only one candidate.

    >>> images = torch.rand(50, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> result = identify(0.5 + 0.1 * images, images)
    >>> result.ranks[:3].tolist(), result.candidates, result.top1
    ([1.0, 1.0, 1.0], 50, 1.0)
    >>> noise = 2 * torch.randn(100, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    >>> identify(images + noise[:50], images, by="likelihood", noise=noise[50:]).top1
    1.0
    """
    choice("by", by, METHODS)
    chunk = integer("chunk", chunk, 1)
    if (by == "likelihood") != (noise is not None):
        raise DataError(
            field="noise",
            value=noise,
            expected='draws of the noise [R, C, H, W] for by="likelihood", and None otherwise',
        )
    if noise is not None:
        original = check_images("original", original)
        check_same_shape("reconstructed", reconstructed, original)
    else:
        reconstructed, original = check_pair(reconstructed, original)
    candidates = original
    if others is not None:
        others = check_same_image_shape("others", others, original)
        candidates = torch.cat([original, others.to(original)])
    if len(candidates) < 2:
        raise DataError(
            "original: 1 candidate, expected 2 or more to rank; pass others",
            field="original",
            value=original,
            expected="2 or more candidates",
        )
    if noise is not None:
        flat = [t.to(original).flatten(1) for t in (reconstructed, candidates, noise)]
        return identify_by_likelihood(*flat, chunk=chunk)
    describe = _centred_pixels if by == "pixels" else _deep_features
    described = torch.cat([describe(part) for part in torch.split(candidates, chunk)])
    # The candidate b with the largest a·b − |b|²/2 is the closest to a; if all |b| = 1 it is the correlation.
    offset = described.square().sum(1) / 2 if by == "lpips" else described.new_zeros(len(described))
    ranks = []
    for begin in range(0, len(reconstructed), chunk):
        similarity = describe(reconstructed[begin : begin + chunk]) @ described.mT - offset
        ranks.append(ranks_of_own(similarity, begin))
    return Identification(by, torch.cat(ranks), len(candidates))


def _centred_pixels(images: Tensor) -> Tensor:
    """Pixels minus their channel's mean, with norm 1: products are correlations. Zeros for uniform images."""
    pixels = images.double()
    centred = (pixels - pixels.mean((2, 3), keepdim=True)).flatten(1)
    norm = centred.norm(dim=1, keepdim=True)
    not_uniform = norm > _UNIFORM * centred.shape[1] ** 0.5
    return torch.where(not_uniform, centred / norm.clamp_min(1e-30), 0.0)


def _deep_features(images: Tensor) -> Tensor:
    return features(images, chunk=len(images)).double()
