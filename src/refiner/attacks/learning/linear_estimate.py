"""A linear estimate of images from the inputs of linear layers, on which a network improves."""

from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.attacks.learning.ridge import RidgeFit, RidgeSums

_ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class LinearEstimate:
    """Estimates each image of a batch, less the mean image, from the features of its sample.

    Args:
        fit: The regression; None estimates zero.
        features: How many of the last inputs are features, an equal number for every sample.
        batch: Images in a client's batch.
        shape: The shape of one image.
    """

    fit: RidgeFit | None
    features: int
    batch: int
    shape: tuple[int, ...]

    @classmethod
    def learn(
        cls,
        deviations: Tensor,
        features: int,
        training: tuple[Tensor, Tensor],
        held_out: tuple[Tensor, Tensor],
    ) -> "LinearEstimate":
        """Return the ridge regression on simulated uploads.

        Args:
            deviations: The images less their mean, `[N, *input]`.
            features: How many of the last inputs are features, the same number for each sample; 0 for none.
            training: The inputs `[U, D]`, and the numbers `[U, B]` of the images that they are of.
            held_out: Others, to choose the penalty on.

        >>> inputs = torch.randn(90, 6, generator=torch.Generator().manual_seed(0))
        >>> images = inputs[:, 2:].reshape(180, 2) @ torch.tensor([[1.0, 2.0, 3.0], [0.0, 1.0, 0.0]])
        >>> batches = torch.arange(180).view(90, 2)
        >>> parts = [(inputs[rows], batches[rows]) for rows in (slice(0, 60), slice(60, 90))]
        >>> estimate = LinearEstimate.learn(images, 4, *parts)
        >>> torch.allclose(estimate(inputs), images[batches], atol=1e-4)
        True
        """
        batch, shape = training[1].shape[1], tuple(deviations.shape[1:])
        if not features:
            return cls(None, 0, batch, shape)

        def rows(inputs: Tensor, batches: Tensor) -> tuple[Tensor, Tensor]:
            targets = deviations[batches.flatten().to(deviations.device)].flatten(1)
            return _per_sample(inputs.to(deviations.device), features, batch), targets

        sums = RidgeSums(features // batch, deviations[0].numel(), deviations.device)
        for part in zip(*(torch.split(t, _ROWS_AT_ONCE) for t in training), strict=True):
            sums.add(*rows(*part))
        fit = sums.solve(*rows(*held_out))
        is_usable = bool(torch.tensor(fit.error).isfinite())
        return cls(fit if is_usable else None, features, batch, shape)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Return the estimates `[U, B, *input]` for inputs `[U, D]`."""
        if self.fit is None:
            return inputs.new_zeros(len(inputs), self.batch, *self.shape)
        rows = _per_sample(inputs, self.features, self.batch)
        return self.fit(rows).view(len(inputs), self.batch, *self.shape)


def _per_sample(inputs: Tensor, features: int, batch: int) -> Tensor:
    """The features of every sample, `[U · B, d]`."""
    return inputs[:, -features:].float().reshape(len(inputs) * batch, features // batch)
