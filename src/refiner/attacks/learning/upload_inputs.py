"""Uploads as inputs of a network: projected where they are long, of unit scale, and without outliers."""

from collections.abc import Sequence

import torch
from torch import Tensor

from refiner.attacks.features import Projection, unit_length
from refiner.attacks.learning.upload_features import UploadFeatures, longest_allowed, shortened
from refiner.core.task import Task

_CLIP = 8.0
# The most features for each sample: a regression on more would take long.
_MOST_FEATURES = 4096


class UploadInputs:
    """Turns the uploads of a client, one or several, into one vector for a network.

    Every upload is divided by its length, which varies widely on a trained model; its logarithm is an input
    of its own. Every value is then divided by its root mean square over simulated uploads and clipped at 8;
    where there are more than `limit` they are projected. The inputs of linear layers that uploads reveal (see
    `UploadFeatures`) come last: they are quotients of the values, which a network would hardly find. Each
    sample has the same number of them, projected on its own, so that a regression can read them by sample.

    Args:
        task: The model and its loss.
        samples: The batch size B.
        uploads: Uploads of every client.
        limit: The greatest number of values, of all uploads together, and of the layers' inputs, of all
            samples together.
        seed: Seed of the projection.

    >>> from refiner.models import LeNet
    >>> task = Task(LeNet(), example=torch.rand(1, 3, 32, 32))
    >>> inputs = UploadInputs(task, samples=1, uploads=2, limit=1000, seed=0)
    >>> gradients = [torch.randn(50, task.size) for _ in range(2)]
    >>> labels = torch.zeros(50, 1, dtype=torch.long)
    >>> inputs.fit(gradients, labels)
    >>> inputs(gradients, labels).shape
    torch.Size([50, 2002])
    """

    def __init__(self, task: Task, samples: int, uploads: int, limit: int, seed: int) -> None:
        self.limit, self.seed = limit, seed
        self.samples = samples
        self._projections = [Projection(task.size * uploads, limit, seed)]
        self._lengths: tuple[Tensor, Tensor] | None = None
        features = UploadFeatures(task, samples, min(limit // samples, _MOST_FEATURES), seed, uploads)
        self._features = None if features.kind == "projected" else features
        self._longest = torch.inf
        self._scales: list[tuple[Tensor, Tensor]] = []

    @property
    def is_fitted(self) -> bool:
        """Whether the scales are set."""
        return bool(self._scales)

    @property
    def revealed(self) -> int:
        """How many of the last inputs are inputs of linear layers, an equal number for every sample; or 0."""
        return self._projections[1].inputs if len(self._projections) > 1 else 0

    def fit(self, gradients: Sequence[Tensor], labels: Tensor) -> None:
        """Set the scale of every value to its root mean square in simulated uploads.

        Args:
            gradients: One upload `[V, N]` for each state of the model.
            labels: The labels `[V, B]`, inferred or granted.
        """
        self._longest, self._scales = torch.inf, []
        lengths = _log_lengths(gradients)
        spread = lengths.std(0).clamp_min(1e-3) if len(lengths) > 1 else torch.ones_like(lengths[0])
        self._lengths = lengths.mean(0), spread
        values, *features = self._values(gradients, labels)
        if features:
            self._longest = longest_allowed(features[0])
            features = [shortened(features[0], self._longest)]
            width = features[0].shape[1]
            self._projections[1:] = [Projection(width, width, self.seed)]
        for part, projection in zip([values, *features], self._projections, strict=True):
            before = _inverse_rms(part)
            self._scales.append((before, _inverse_rms(projection(_scaled(part, before)))))

    def __call__(self, gradients: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Return the inputs `[V, D]` of uploads.

        Args:
            gradients: One upload `[V, N]` for each state of the model.
            labels: The labels `[V, B]`, inferred or granted.
        """
        parts = [
            _scaled(projection(_scaled(values, before)), after)
            for values, projection, (before, after) in zip(
                self._values(gradients, labels), self._projections, self._scales, strict=True
            )
        ]
        assert self._lengths is not None
        mean, spread = self._lengths
        lengths = ((_log_lengths(gradients) - mean) / spread).clamp(-_CLIP, _CLIP)
        return torch.cat([lengths, *parts], dim=1)

    def _values(self, gradients: Sequence[Tensor], labels: Tensor) -> list[Tensor]:
        """The entries of all uploads, and the inputs of linear layers."""
        gradients = [gradient.float() for gradient in gradients]
        values = [torch.cat([unit_length(gradient) for gradient in gradients], dim=1)]
        if self._features is not None:
            features = self._features(gradients, labels).flatten(1)
            values.append(shortened(features.nan_to_num(0.0, 0.0, 0.0), self._longest))
        return values


def _log_lengths(gradients: Sequence[Tensor]) -> Tensor:
    """The logarithm of the length of every upload, `[V, uploads]`."""
    lengths = [torch.linalg.vector_norm(gradient.double(), dim=1) for gradient in gradients]
    return torch.stack(lengths, dim=1).clamp_min(1e-30).log().float()


def _scaled(values: Tensor, scale: Tensor) -> Tensor:
    return (values * scale).nan_to_num(0.0, _CLIP, -_CLIP).clamp(-_CLIP, _CLIP)


def _inverse_rms(values: Tensor) -> Tensor:
    """1 / the root mean square of every column; 0 for one that is always 0 or not finite."""
    rms = values.square().mean(0).sqrt()
    return torch.where((rms > 0) & rms.isfinite(), 1 / rms, 0.0)
