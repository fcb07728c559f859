"""A client's upload as one vector that describes its whole batch, for a regression or a small network."""

from dataclasses import replace

import torch
from torch import Tensor

from refiner.attacks import Observation, infer_labels
from refiner.attacks.features import Projection, unit_length
from refiner.attacks.learning.upload_features import UploadFeatures

_CLIP = 8.0


class UploadSummary:
    """Describes uploads by vectors that do not depend on the order of the batch, nor much on its labels.

    - the logarithm of the upload's length;
    - the entries of all layers but the last, divided by their length, and those of the last layer likewise,
      whose rows belong to classes and say little where a victim's classes are not the public ones;
    - the length of the gradient for each input of a layer and, but for the last layer, for each output: the
      signs of entries depend on the labels, their lengths hardly do;
    - the mean input of the last layer over the batch, as far as it can be read off the last layer's gradient
      (see `UploadFeatures`).

    Each part is projected to at most `limit` values, and standardised over simulated uploads. `widths` says
    which values belong to which part.

    Args:
        observation: Uploads of the victims: their model and batch size.
        limit: The most values of a part.
        seed: Seed of the projections.

    >>> from refiner import LeNet, NoDefense, Task
    >>> x = torch.rand(6, 2, 3, 32, 32)
    >>> task = Task(LeNet(), example=x[0])
    >>> update = NoDefense().protect(task, x, torch.arange(12).view(6, 2) % 10)
    >>> observation = Observation.of(task, update)
    >>> summary = UploadSummary(observation, limit=100, seed=0)
    >>> summary.fit(observation.gradient)
    >>> summary(observation.gradient).shape
    torch.Size([6, 401])
    """

    def __init__(self, observation: Observation, limit: int, seed: int) -> None:
        task = observation.task
        self._observation, self._limit, self._seed = observation, limit, seed
        features = UploadFeatures(task, observation.samples, task.size, seed)
        self._features = None if features.kind == "projected" else features
        last = task.layers[-1].parameters
        is_last = torch.cat([torch.full((task.shapes[n].numel(),), n in last) for n in task.names])
        self._is_last = is_last.to(observation.gradient.device)
        self._last = last
        self._parts: list[tuple[Tensor, Projection, Tensor, Tensor]] = []

    @property
    def is_fitted(self) -> bool:
        """Whether the scales are set."""
        return bool(self._parts)

    @property
    def widths(self) -> list[int]:
        """The number of values of each part."""
        return [projection.width for _, projection, _, _ in self._parts]

    def fit(self, gradient: Tensor) -> None:
        """Set all scales by simulated uploads `[U, N]`."""
        self._parts = []
        for number, part in enumerate(self._raw_parts(gradient)):
            projection = Projection(part.shape[1], self._limit, self._seed + number)
            scale = _inverse(part.square().mean(0).sqrt())
            values = projection(part * scale)
            spread = values.std(0) if len(values) > 1 else torch.ones_like(values[0])
            self._parts.append((scale, projection, values.mean(0), _inverse(spread)))

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the vectors `[V, D]` of uploads `[V, N]`."""
        parts = zip(self._raw_parts(gradient), self._parts, strict=True)
        return torch.cat(
            [
                ((projection(part * scale) - mean) * inverse)
                .nan_to_num(0.0, _CLIP, -_CLIP)
                .clamp(-_CLIP, _CLIP)
                for part, (scale, projection, mean, inverse) in parts
            ],
            dim=1,
        )

    def _raw_parts(self, gradient: Tensor) -> list[Tensor]:
        gradient = gradient.float()
        length = torch.linalg.vector_norm(gradient.double(), dim=1, keepdim=True)
        parts = [length.clamp_min(1e-30).log().float(), unit_length(gradient[:, self._is_last])]
        if not bool(self._is_last.all()):
            parts.append(unit_length(gradient[:, ~self._is_last]))
        lengths = self._entry_lengths(gradient)
        if lengths:
            parts.append(unit_length(torch.cat(lengths, dim=1)))
        if self._features is not None:
            labels = infer_labels(replace(self._observation, gradient=gradient, labels=None))
            parts.append(self._features([gradient], labels).mean(1).nan_to_num(0.0, 0.0, 0.0))
        return parts

    def _entry_lengths(self, gradient: Tensor) -> list[Tensor]:
        """The lengths of the gradients of each weight along its inputs and along its outputs."""
        found = []
        for name, value in self._observation.task.unflatten(gradient).items():
            if value.ndim > 2:
                rows = value.flatten(2)
                found.append(torch.linalg.vector_norm(rows, dim=1))
                if name not in self._last:
                    found.append(torch.linalg.vector_norm(rows, dim=2))
        return found


def _inverse(scale: Tensor) -> Tensor:
    """1 / scale; 0 for a value that is always the same or not finite."""
    return torch.where((scale > 1e-12) & scale.isfinite(), 1 / scale, 0.0)
