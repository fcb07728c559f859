"""Analytic reconstruction: the input of a fully connected first layer, read off its gradient."""

import math
import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner.attacks.base import Attack
from refiner.attacks.features import LinearLayer, layer_gradient, linear_layers
from refiner.attacks.label_inference import known_labels
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.threat_model import ThreatModel
from refiner.core.module_inputs import module_input
from refiner.core.precision import tensor_float32
from refiner.core.task import Task
from refiner.errors import DataError


@dataclass(frozen=True)
class AnalyticReconstruction(Attack):
    """Reads a single sample off the gradient of a fully connected first layer: exact without a defence.

    For one sample x the layer's gradients are gW = δ ⊗ x and gb = δ, so that x = gW / gb (Phong, Aono,
    Hayashi, Wang and Moriai, "Privacy-Preserving Deep Learning via Additively Homomorphic Encryption", IEEE
    TIFS 2018; Geiping et al., NeurIPS 2020, Proposition 3.1). Rows, and several uploads, are combined by
    least squares.

    >>> from refiner import NoDefense
    >>> from refiner.models import MLP
    >>> x, y = torch.rand(3, 1, 3, 32, 32), torch.tensor([[7], [0], [4]])
    >>> task = Task(MLP(), example=x[0])
    >>> observation = Observation.of(task, NoDefense().protect(task, x, y))
    >>> bool((AnalyticReconstruction().reconstruct(observation).x - x).abs().max() < 1e-4)
    True
    """

    name: ClassVar[str] = "analytic"
    reference: ClassVar[str] = (
        "Phong, Aono, Hayashi, Wang and Moriai, Privacy-Preserving Deep Learning via Additively Homomorphic "
        "Encryption, IEEE TIFS 2018"
    )
    single_only: ClassVar[str | None] = "of more samples analytic would return a weighted mean"

    def check(self, task: Task) -> None:
        """Raise unless the model's first layer is fully connected, with a bias, on the input itself.

        Args:
            task: The model and its loss.

        Raises:
            DataError: The model starts with another layer.
        """
        first_linear_layer(task, self.name)

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Reconstruct the samples.

        Args:
            observations: One or more uploads of the same victims.
            threat: The capabilities granted.
            options: Not used: nothing is random or iterated.

        Returns:
            The samples, in 0..1. The objective is the share of gW that is not δ ⊗ x: 0 for an undefended
            upload. A victim without a finite result, as for gb = 0, has diverged.

        Raises:
            DataError: The model starts with another layer.
        """
        start = time.perf_counter()
        first = observations[0]
        layer = first_linear_layer(first.task, self.name)
        labels = known_labels(observations, threat)
        with tensor_float32(False), torch.no_grad():
            parts = [layer_gradient(o.task, o.gradient, layer) for o in observations]
            weight, bias = (torch.cat(column, dim=1) for column in zip(*parts, strict=True))
            x, residual = _least_squares(weight, bias)
        failed = ~(x.isfinite().all(1) & residual.isfinite() & (bias != 0).any(1))
        x = torch.where(failed[:, None], 0.5, x).clamp(0, 1).view(-1, 1, *first.task.input_shape)
        objective = residual.masked_fill(failed, torch.inf)
        return Reconstruction(x, labels.to(x.device), objective, failed, time.perf_counter() - start)


def _least_squares(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Return x `[V, inputs]` that minimises ‖gW − gb ⊗ x‖², and that residual relative to ‖gW‖²."""
    largest = bias.abs().amax(1, keepdim=True)
    # In float64, and divided by the largest first, so that squares neither overflow nor vanish.
    relative = (bias / largest.where(largest > 0, 1)).double()
    x = (relative[:, None] @ weight.double())[:, 0] / relative.square().sum(1, keepdim=True).clamp_min(1)
    x = x / largest.where(largest > 0, 1)
    error = weight - bias[..., None] * x[:, None].to(bias)
    lengths = [torch.linalg.vector_norm(t.flatten(1), dim=1) for t in (error, weight)]
    return x.to(weight.dtype), (lengths[0] / lengths[1].clamp_min(torch.finfo(weight.dtype).tiny)).square()


def first_linear_layer(task: Task, attack: str) -> LinearLayer:
    """Return the fully connected layer that sees the input itself.

    Args:
        task: The model and its loss.
        attack: The name of the attack that inverts it.

    Raises:
        DataError: The model starts with another layer.
    """
    layer = next((layer for layer in linear_layers(task) if layer.name == task.layers[0].name), None)
    if layer is not None:
        parameters = task.parameters()
        like = next(iter(parameters.values()))
        # Distinct values, so that a reordered or scaled input is noticed.
        ramp = torch.linspace(0, 1, 2 * math.prod(task.input_shape), dtype=like.dtype, device=like.device)
        x = ramp.view(2, *task.input_shape)
        with torch.no_grad():
            if torch.equal(module_input(task, parameters, x, layer.name), x.flatten(1)):
                return layer
    raise DataError(
        field="model",
        value=task.layers[0].name or type(task.model).__name__,
        expected=f"a fully connected first layer with a bias, on the input itself, which {attack} inverts",
    )
