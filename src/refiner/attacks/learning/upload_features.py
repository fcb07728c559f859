"""The features of uploads that the linear attack regresses images on, for each kind of model and batch."""

from collections.abc import Sequence

import torch
from torch import Tensor

from refiner.attacks.features import (
    Projection,
    layer_gradient,
    layer_input,
    linear_layers,
    unit_length,
)
from refiner.core.task import Task

# Features that are longer than this many medians are scaled down: a division by almost zero has no meaning.
_LONGEST = 4.0


class UploadFeatures:
    """Reads features `[V, S, d]` of uploads: S = 1 for a whole batch, S = B for each of its samples.

    - B = 1 and a linear layer: its input (see `features.layer_input`), exact for an undefended upload.
    - B > 1 and a last linear layer with a row for every class: row k of its gradient contains the inputs of
      the samples with label k, and less of all others; see `_class_features`.
    - Any other: the upload divided by its length; one row for the batch.

    More features than the limit are projected at random.

    Args:
        task: The model and its loss.
        samples: The batch size B.
        limit: The most features.
        seed: Seed of the projection.
        uploads: The number of uploads of every victim.
    """

    def __init__(self, task: Task, samples: int, limit: int, seed: int, uploads: int = 1) -> None:
        self.task, self.samples = task, samples
        self._layers = linear_layers(task)
        last = self._layers[-1] if self._layers and self._layers[-1].name == task.layers[-1].name else None
        has_class_rows = last is not None and task.shapes[last.bias] == (task.classes,)
        self._last = last if has_class_rows else None
        width = task.size
        if self.kind == "inputs":
            width = sum(layer.inputs for layer in self._layers)
        elif self._last is not None and self.kind == "classes":
            width = self._last.inputs + 1
        self._projection = Projection(width, max(1, limit // uploads), seed)

    @property
    def kind(self) -> str:
        """Which features are read: "inputs", "classes" or "projected"."""
        if self.samples == 1:
            return "inputs" if self._layers else "projected"
        return "classes" if self._last is not None else "projected"

    def __call__(self, gradients: Sequence[Tensor], labels: Tensor) -> Tensor:
        """Return the features of uploads.

        Args:
            gradients: One upload `[V, N]` of every victim for each observed state of the model.
            labels: The labels `[V, B]`, inferred for victims.

        Returns:
            `[V, S, d]`; what several uploads of a victim reveal is concatenated.
        """
        return torch.cat([self._of_one(gradient, labels) for gradient in gradients], dim=-1)

    def _of_one(self, gradient: Tensor, labels: Tensor) -> Tensor:
        """Return the features of one upload of every victim, projected."""
        rows = self._unprojected(gradient, labels)
        return self._projection(rows.flatten(0, 1)).view(*rows.shape[:2], -1)

    def _unprojected(self, gradient: Tensor, labels: Tensor) -> Tensor:
        if self.kind == "inputs":
            inputs = [layer_input(self.task, gradient, layer) for layer in self._layers]
            return torch.cat(inputs, dim=1)[:, None]
        if self.samples > 1 and self._last is not None:
            weight, bias = layer_gradient(self.task, gradient, self._last)
            return _class_features(weight, bias, labels)
        return unit_length(gradient)[:, None]


def _class_features(weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
    """Return for every sample the mean input of the samples with its label, as far as rows reveal it.

    Row k of the last layer's gradient is the mean over the batch of (p_k − 1[label = k])·h. The rows of
    absent labels are the mean of p_k·h alone; with equal probabilities subtracting their mean leaves the
    inputs of the samples with label k. If no label is absent the subtracted bias is the probability
    1/classes, and a last feature lets the regression subtract the inputs' mean.
    """
    classes = bias.shape[1]
    present = torch.zeros_like(bias).scatter(1, labels.to(bias.device), 1.0)
    absent = 1 - present
    count = absent.sum(1, keepdim=True)
    share = absent / count.clamp_min(1)
    reference = (share[:, None] @ weight)[:, 0]
    reference_bias = torch.where(count > 0, (share * bias).sum(1, keepdim=True), 1 / classes)
    rows = torch.arange(len(weight), device=weight.device)[:, None]
    numerator = weight[rows, labels.to(weight.device)] - reference[:, None]
    denominator = bias.gather(1, labels.to(bias.device)) - reference_bias
    denominator = denominator.where(denominator != 0, 1)
    inputs = numerator / denominator[..., None]
    correction = torch.where(count > 0, 0.0, 1 / denominator)
    return torch.cat([inputs, correction[..., None].to(inputs)], dim=2)


def longest_allowed(features: Tensor) -> float:
    """Return the length above which features `[n, d]` like these are scaled down.

    Args:
        features: Finite features of simulated uploads.

    >>> longest_allowed(torch.tensor([[1.0], [1.0], [500.0]]))
    4.0
    """
    length = torch.linalg.vector_norm(features, dim=1)
    length = length[length > 0]
    return _LONGEST * float(length.median()) if len(length) else torch.inf


def shortened(features: Tensor, longest: float) -> Tensor:
    """Return features `[n, d]`, each scaled down to at most `longest`.

    Args:
        features: Features.
        longest: From `longest_allowed`.

    >>> shortened(torch.tensor([[3.0, 4.0], [30.0, 40.0]]), 10.0).round()
    tensor([[3., 4.],
            [6., 8.]])
    """
    length = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    factor: Tensor = longest / length.clamp_min(torch.finfo(features.dtype).tiny)
    return features * factor.clamp_max(1)
