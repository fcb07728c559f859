"""Modules that a malicious server puts in front of a model, so that gradients separate a batch's images.

Each has a linear layer whose units are active for few images. Where one image alone activates a unit, the
gradients of the unit's weights and bias are δ·x and δ, so that their ratio is the image. All units have the
same outgoing weights: δ depends on the image, not on the unit.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner.core.task import Task
from refiner.errors import DataError, RefinerError


class FrontedModel(nn.Module):
    """`model(front(x))`.

    Args:
        front: A module that maps inputs to inputs of the same shape.
        model: The model behind it.
    """

    def __init__(self, front: nn.Module, model: nn.Module) -> None:
        super().__init__()
        self.front, self.model = front, model

    @property
    def display_name(self) -> str:
        """The model's name in a report."""
        return f"{type(self.model).__name__} behind {type(self.front).__name__}"

    def forward(self, x: Tensor) -> object:
        """What the model returns for the front's output.

        Args:
            x: Inputs `[B, *input]`.

        Returns:
            The model's output.
        """
        return self.model(self.front(x))


class ReadableUnits(nn.Module):
    """Adds the outputs of units to the input, all of them along one fixed direction.

    Args:
        input_shape: The shape of one input.
        weight: The units' weights `[K, inputs]`.
        bias: Their biases `[K]`.
        scale: The length of the direction: the larger, the larger is δ.
        bounded: Whether a unit's output ends at 1, and its gradient with it; otherwise it is a ReLU.
    """

    def __init__(
        self, input_shape: Sequence[int], weight: Tensor, bias: Tensor, scale: float, *, bounded: bool
    ) -> None:
        super().__init__()
        units, inputs = weight.shape
        size = math.prod(input_shape)
        self.encoder, self.decoder = nn.Linear(inputs, units), nn.Linear(units, size, bias=False)
        self.bounded = bounded
        direction = torch.randn(size, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            self.encoder.weight.copy_(weight)
            self.encoder.bias.copy_(bias)
            self.decoder.weight.copy_((scale * direction / direction.norm())[:, None].expand(-1, units))

    def forward(self, x: Tensor) -> Tensor:
        """The inputs plus the units' outputs.

        Args:
            x: Inputs `[B, *input]`.

        Returns:
            The same shape.
        """
        scores = self.encoder(self.encoder_input(x))
        active = F.hardtanh(scores, 0.0, 1.0) if self.bounded else F.relu(scores)
        shifted: Tensor = x + self.decoder(active).view_as(x)
        return shifted

    def encoder_input(self, x: Tensor) -> Tensor:
        """What the units see of inputs `[B, *input]`: the inputs themselves, flattened."""
        return x.flatten(1)


def brightness_edges(bins: int, mean: float, std: float) -> Tensor:
    """The edges `[bins + 1]` of equally probable bins of a normal distribution, in float64.

    The outer bins end where one more image in a hundred bins would be expected.

    Args:
        bins: The number of bins.
        mean: The mean.
        std: The standard deviation.

    >>> brightness_edges(2, 0.5, 0.1)[1].item()
    0.5
    """
    tail = 0.01 / bins
    probabilities = torch.linspace(0, 1, bins + 1, dtype=torch.float64).clamp(tail, 1 - tail)
    normal: Tensor = torch.special.ndtri(probabilities)
    return mean + std * normal


def brightness_units(edges: Tensor, inputs: int) -> tuple[Tensor, Tensor]:
    """Weights `[K, inputs]` and biases `[K]` of units that rise from 0 to 1 within a bin of brightness.

    Args:
        edges: The edges of the bins, `[K + 1]`.
        inputs: The number of values of one input.
    """
    width = edges.diff()
    weight = (1 / (inputs * width))[:, None].expand(-1, inputs)
    return weight.float(), (-edges[:-1] / width).float()


def put_in_front(task: Task, front: nn.Module) -> Task:
    """The task of the same model behind a module.

    Args:
        task: The model and its loss; its parameters are shared.
        front: The module.

    Returns:
        A task with the parameters of both.

    Raises:
        DataError: Nothing can be put in front of the model.
    """
    like = next(iter(task.parameters().values()))
    front = front.to(like)
    try:
        example = torch.full((2, *task.input_shape), 0.5, dtype=like.dtype, device=like.device)
        return Task(FrontedModel(front, task.model), example=example, loss=task.loss_function)
    except RefinerError as error:
        raise DataError(
            field="model",
            value=type(task.model).__name__,
            problem=f"nothing can be put in front of it: {error}",
        ) from error
