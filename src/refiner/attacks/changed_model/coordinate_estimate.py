"""The most likely coordinates of images, given several readings of each with errors learned by simulation."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

# Values that a coordinate may have, in standard deviations, and errors that a reading may have.
_STEP, _LIMIT, _LARGEST_ERROR = 0.02, 16.0, 16.0
# How far the histograms of coordinates and of errors are smoothed, and the share of what was never seen.
_PRIOR_WIDTH, _ERROR_WIDTH, _UNSEEN = 0.08, 0.03, 1e-5
# Coordinates that share a histogram, and images estimated at a time.
_BAND, _IMAGES = 96, 32

Reading = Callable[[Tensor], Tensor]
"""What an upload shows of coordinates, without errors."""


class CoordinateEstimate:
    """The mean of a coordinate's posterior; prior and errors are histograms of public images.

    Args:
        readings: What each upload shows of coordinates.
        prior: Coordinates of public images `[N, D]`.
        read: What the uploads of simulated clients showed, `[n, D]` for each upload.
        truth: Their coordinates `[n, D]`.
        variance: How much each coordinate counts, `[D]`: those with about the same share a prior.

    >>> z, noise = torch.randn(2000, 1), torch.randn(2000, 1)
    >>> estimate = CoordinateEstimate([lambda z: z], z, [z + noise], z, torch.ones(1))
    >>> estimate([torch.tensor([[2.0]])])[0].round().tolist()
    [[1.0]]
    """

    def __init__(
        self,
        readings: Sequence[Reading],
        prior: Tensor,
        read: Sequence[Tensor],
        truth: Tensor,
        variance: Tensor,
    ) -> None:
        self._grid = torch.linspace(-_LIMIT, _LIMIT, round(2 * _LIMIT / _STEP) + 1).to(truth)
        self._shown = [reading(self._grid) for reading in readings]
        self._bands = torch.split(variance.argsort(descending=True), _BAND)
        self._prior = [_histogram(prior[:, band], _LIMIT, _PRIOR_WIDTH) for band in self._bands]
        self._errors = [
            _histogram(seen - reading(truth), _LARGEST_ERROR, _ERROR_WIDTH)
            for seen, reading in zip(read, readings, strict=True)
        ]

    def __call__(self, read: Sequence[Tensor]) -> list[Tensor]:
        """Return the estimates `[n, D]` from the first reading, from the first two, and so on.

        Args:
            read: What the uploads showed, `[n, D]` each.
        """
        found = [torch.empty_like(values) for values in read]
        for rows in torch.split(torch.arange(len(read[0]), device=read[0].device), _IMAGES):
            for band, prior in zip(self._bands, self._prior, strict=True):
                log = prior
                for values, shown, errors, means in zip(read, self._shown, self._errors, found, strict=True):
                    error = values[rows][:, band, None] - shown
                    log = log + errors[_place(error, _LARGEST_ERROR)]
                    means[rows[:, None], band] = (log.softmax(-1) * self._grid).sum(-1)
        return found


def _place(values: Tensor, limit: float) -> Tensor:
    """The numbers of the bins of a histogram from −limit to limit; the outer ones take what is beyond."""
    return (values.nan_to_num(0).clamp(-limit, limit) / _STEP + limit / _STEP).round().long()


def _histogram(values: Tensor, limit: float, width: float) -> Tensor:
    """The logarithm of a histogram that is smoothed by a normal distribution."""
    counts = _place(values, limit).flatten().bincount(minlength=round(2 * limit / _STEP) + 1).to(values)
    reach = round(4 * width / _STEP)
    kernel = torch.exp(-(torch.arange(-reach, reach + 1).to(values) * _STEP / width).square() / 2)
    smooth = F.conv1d(counts[None, None], (kernel / kernel.sum())[None, None], padding=reach)[0, 0]
    return (smooth / smooth.sum() + _UNSEEN).log()
