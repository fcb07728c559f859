"""Features of an upload that reveal activations: the input of a linear layer, and a random projection.

For one sample the gradient of a linear layer with weight W and bias b is gW = δ ⊗ h and gb = δ, with h the
layer's input and δ the gradient of its output, so that gW / gb is h itself (Phong et al., IEEE TIFS 2018;
Geiping et al., NeurIPS 2020, Proposition 3.1). No label is needed.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from refiner.core.module_inputs import module_input
from refiner.core.task import Task
from refiner.errors import DataError


class LinearLayer(NamedTuple):
    """A linear layer that gets one row for every sample, with the full names of its parameters."""

    name: str
    weight: str
    bias: str
    inputs: int
    """The width of its input."""


def linear_layers(task: Task) -> tuple[LinearLayer, ...]:
    """Return the layers of a model whose input a gradient of one sample reveals, in forward order.

    Args:
        task: The model and its loss.

    Returns:
        Every trainable `nn.Linear` with a bias that runs once in a pass, on one row per sample. A layer that
        runs on each token of a sample is none: its gradient is a sum over tokens.

    >>> from refiner.models import LeNet
    >>> task = Task(LeNet(), example=torch.rand(1, 3, 32, 32))
    >>> [(layer.name, layer.inputs) for layer in linear_layers(task)]
    [('head', 768)]
    """
    found = []
    for layer in task.layers:
        module = task.model.get_submodule(layer.name)
        weight, bias = (f"{layer.name}.{part}" if layer.name else part for part in ("weight", "bias"))
        if not isinstance(module, nn.Linear) or weight not in task.shapes or bias not in task.shapes:
            continue
        if _gets_one_row_per_sample(task, layer.name, module.in_features):
            found.append(LinearLayer(layer.name, weight, bias, module.in_features))
    return tuple(found)


def _gets_one_row_per_sample(task: Task, module: str, inputs: int) -> bool:
    parameters = task.parameters()
    example = next(iter(parameters.values())).new_zeros(2, *task.input_shape)
    try:
        with torch.no_grad():
            return module_input(task, parameters, example, module).shape == (2, inputs)
    except DataError:  # it runs more or less than once, or on other rows
        return False


def layer_input(task: Task, gradient: Tensor, layer: LinearLayer) -> Tensor:
    """Return the input of a linear layer, exactly for an undefended upload of one sample.

    Every row k of gW / gb is an estimate of the input; they are combined by least squares,
    Σ gb_k gW_k / Σ gb_k², which trusts rows with a large gb most.

    Args:
        task: The model and its loss.
        gradient: Uploads `[V, N]`.
        layer: One of `linear_layers`.

    Returns:
        `[V, inputs]`; zero where gb is zero, and not finite where the gradient is too large.

    >>> from refiner.core import flatten, gradients
    >>> x = torch.rand(3, 1, 4)
    >>> task = Task(nn.Linear(4, 2), example=x[0])
    >>> gradient = flatten(gradients(task, x, torch.zeros(3, 1, dtype=torch.long)))
    >>> torch.allclose(layer_input(task, gradient, linear_layers(task)[0]), x[:, 0])
    True
    """
    weight, bias = layer_gradient(task, gradient, layer)
    largest = bias.abs().amax(1, keepdim=True)
    # Divided by the largest first, so that squares neither overflow nor vanish.
    relative = bias / largest.where(largest > 0, 1)
    total = relative.square().sum(1, keepdim=True) * largest
    return (relative[:, None] @ weight)[:, 0] / total.where(largest > 0, 1)


def layer_gradient(task: Task, gradient: Tensor, layer: LinearLayer) -> tuple[Tensor, Tensor]:
    """Return the gradients of a linear layer's weight `[V, outputs, inputs]` and bias `[V, outputs]`.

    Args:
        task: The model and its loss.
        gradient: Uploads `[V, N]`.
        layer: One of `linear_layers`.
    """
    named = task.unflatten(gradient)
    return named[layer.weight], named[layer.bias]


class Projection:
    """A seeded random map of uploads to fewer numbers: sums of entries in random groups with random signs.

    It keeps the inner products of uploads up to an error of about one over the root of `outputs`. A dense
    projection of a ResNet's gradient to 4,096 numbers would need 45 billion factors; this one needs one sign
    and one place for every entry.

    Args:
        inputs: The number of entries of an upload.
        outputs: The most numbers to map to; fewer inputs stay as they are.
        seed: Seed of groups and signs.

    >>> uploads = torch.rand(2, 1000)
    >>> Projection(1000, 64, seed=0)(uploads).shape, torch.equal(Projection(1000, 2000, 0)(uploads), uploads)
    (torch.Size([2, 64]), True)
    """

    def __init__(self, inputs: int, outputs: int, seed: int) -> None:
        self.inputs, self.outputs = inputs, outputs
        generator = torch.Generator().manual_seed(seed)
        group = -(-inputs // outputs)
        # Padded to whole groups by entries that are read as zero.
        order = torch.randperm(group * outputs, generator=generator)
        signs = torch.randint(2, (group * outputs,), generator=generator) * 2.0 - 1
        signs[order >= inputs] = 0
        self._order, self._signs = order.clamp_max(inputs - 1), signs

    @property
    def width(self) -> int:
        """The number of values that an upload is mapped to."""
        return min(self.inputs, self.outputs)

    def __call__(self, uploads: Tensor) -> Tensor:
        """Return the projections `[V, width]` of uploads `[V, inputs]`.

        Args:
            uploads: Uploads, on any device.
        """
        if self.inputs <= self.outputs:
            return uploads
        order, signs = self._order.to(uploads.device), self._signs.to(uploads)
        return (uploads[:, order] * signs).view(len(uploads), self.outputs, -1).sum(2)


def unit_length(gradient: Tensor) -> Tensor:
    """Return uploads `[V, N]` divided by their lengths; a zero upload stays zero.

    Args:
        gradient: Uploads.

    >>> unit_length(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    length = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    scaled: Tensor = gradient / length.where(length > 0, 1)
    return scaled
