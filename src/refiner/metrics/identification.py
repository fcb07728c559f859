"""Identification: is a reconstruction nearer to its own original than to all the others?"""

from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.checks import choice, integer
from refiner.errors import DataError
from refiner.metrics.pairs import check_images, check_pair
from refiner.metrics.perceptual import features

WAYS = ("pixels", "lpips")
# Two candidates closer than this are equally near: products in float64 differ by rounding alone.
_TIE = 1e-9
# A standard deviation below this is the rounding of a flat image.
_FLAT = 1e-6


@dataclass(frozen=True, eq=False)
class Identification:
    """The rank of each reconstruction's own original among the candidates."""

    by: str
    ranks: Tensor
    """`[N]`, 1 for the nearest; candidates equally near share the mean of their ranks."""
    candidates: int

    @property
    def top1(self) -> float:
        """The share of reconstructions whose own original is nearest; by chance 1 / candidates."""
        return float((self.ranks == 1).double().mean())

    @property
    def shares(self) -> Tensor:
        """`[N]` rank / candidates: how likely an image that knows nothing ranks as well or better."""
        return self.ranks / self.candidates


def identify(
    reconstructed: Tensor,
    original: Tensor,
    by: str = "pixels",
    *,
    others: Tensor | None = None,
    chunk: int = 256,
) -> Identification:
    """Rank each of N reconstructions' own original among all N, and among `others [M, C, H, W]` if given.

    `by="pixels"` ranks by the Pearson correlation of pixels, each channel less its own mean: brightness,
    contrast and a flat colour win nothing, and a flat reconstruction has the middle rank. It finds an image
    under noise that hides it from the eye. `by="lpips"` ranks by LPIPS, which finds a mirrored, turned or
    shifted image and is soon lost in noise. `others` are images of the same kind that are no victims: few
    victims alone can't tell a leak from luck. The descriptors of all candidates are held at once, their
    products `chunk` rows at a time.

    >>> images = torch.rand(50, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> found = identify(0.5 + 0.1 * images, images)
    >>> found.ranks[:3].tolist(), found.candidates, found.top1
    ([1.0, 1.0, 1.0], 50, 1.0)
    """
    choice("by", by, WAYS)
    chunk = integer("chunk", chunk, 1)
    reconstructed, original = check_pair(reconstructed, original)
    candidates = original if others is None else torch.cat([original, _fitting(others, original)])
    if len(candidates) < 2:
        raise DataError("original: 1 candidate, expected 2 or more to rank; pass others")
    describe = _correlation if by == "pixels" else _perception
    wanted = torch.cat([describe(part) for part in torch.split(candidates, chunk)])
    # The candidate with the largest a·b − |b|²/2 is the nearest to a; all |b| = 1 makes that the correlation.
    offset = wanted.square().sum(1) / 2 if by == "lpips" else wanted.new_zeros(len(wanted))
    ranks = []
    for begin in range(0, len(reconstructed), chunk):
        likeness = describe(reconstructed[begin : begin + chunk]) @ wanted.mT - offset
        own = likeness.diagonal(begin)[:, None]
        nearer = (likeness > own + _TIE).sum(1)
        equal = ((likeness - own).abs() <= _TIE).sum(1) - 1
        ranks.append(1 + nearer + equal / 2)
    return Identification(by, torch.cat(ranks), len(candidates))


def _fitting(others: Tensor, original: Tensor) -> Tensor:
    others = check_images("others", others)
    if others.shape[1:] != original.shape[1:]:
        raise DataError(
            f"others: images of shape {list(others.shape[1:])}, "
            f"expected {list(original.shape[1:])} as the originals have"
        )
    return others.to(original)


def _correlation(images: Tensor) -> Tensor:
    """Pixels less their channel's mean, of length 1, so that products are correlations; zeros if flat."""
    pixels = images.double()
    centred = (pixels - pixels.mean((2, 3), keepdim=True)).flatten(1)
    length = centred.norm(dim=1, keepdim=True)
    visible = length > _FLAT * centred.shape[1] ** 0.5
    return torch.where(visible, centred / length.clamp_min(1e-30), 0.0)


def _perception(images: Tensor) -> Tensor:
    return features(images, chunk=len(images)).double()
