"""The module of a server that folds images: features that a search reaches however strong its noise."""

import math

import torch
from torch import Tensor, nn

from refiner.attacks.changed_model.front_module import FrontedModel
from refiner.core.task import Task
from refiner.errors import DataError
from refiner.shaped_noise import NaturalNoise

# Of the layer that holds a row of features for each class.
_MAX_WEIGHTS = 2**25
# The value of the constant image that the model sees.
_CONSTANT = 0.5
# The smallest singular value that counts, relative to the largest: one is always zero but for rounding.
_SMALLEST = 1e-4


def triangle_wave(z: Tensor, length: Tensor | float, begin: Tensor | float) -> Tensor:
    """A triangle wave: rises and falls by as much as z changes, with segments of a length.

    Args:
        z: Any values.
        length: The length of a segment, above 0.
        begin: Where a segment has its middle: a rising one, with the value 0.

    >>> triangle_wave(torch.tensor([0.0, 0.25, 0.75, 1.0]), 1.0, 0.0).tolist()
    [0.0, 0.25, 0.25, 0.0]
    """
    return length * (0.5 - (torch.remainder((z - begin + length / 2) / length, 2) - 1).abs())


class FoldingModule(nn.Module):
    """Shows the model a constant image; a layer of zeros in between has gradients that hold the features.

    The layer's inputs are the whitened coordinates of an image, or triangle waves of them. Its outputs, all
    zero, move the constant image in directions that tell classes apart: its gradient is a sum of features for
    each class.

    Args:
        statistics: What whitens images.
        directions: For each output what it adds to the image, `[inputs, K]`.
        by_class: The derivative of the loss for each output, `[classes, K]`: what separates classes.
        probabilities: What the model answers to the constant image, `[classes]`.
    """

    directions: Tensor
    by_class: Tensor
    probabilities: Tensor
    wave: Tensor

    def __init__(
        self, statistics: NaturalNoise, directions: Tensor, by_class: Tensor, probabilities: Tensor
    ) -> None:
        super().__init__()
        self.statistics = statistics
        # Tensors, and in place: what is not a tensor is read once only when a task is made.
        self.register_buffer("directions", directions)
        self.register_buffer("by_class", by_class)
        self.register_buffer("probabilities", probabilities)
        self.register_buffer("wave", torch.tensor([1.0, 0.0, 0.0]))
        self.features = nn.Linear(len(directions), directions.shape[1])
        nn.init.zeros_(self.features.weight)
        nn.init.zeros_(self.features.bias)

    @classmethod
    def for_task(cls, task: Task, scale: float) -> "FoldingModule":
        """Return the module for a model.

        Args:
            task: The model and its loss.
            scale: The derivative of the loss for an output of the image's own class.

        Raises:
            DataError: The inputs are no images, or there are too few or too many classes.
        """
        inputs = math.prod(task.input_shape)
        if task.classes < 3 or task.classes * inputs > _MAX_WEIGHTS:
            most = _MAX_WEIGHTS // inputs
            raise DataError(field="classes", value=task.classes, expected=f"3 to {most:,} for folds")
        like = next(iter(task.parameters().values()))
        statistics = NaturalNoise.bundled(like.device).for_shape(task.input_shape)
        shape = (task.classes, *task.input_shape)
        image = torch.full(shape, _CONSTANT, dtype=like.dtype, device=like.device, requires_grad=True)
        scores = task.scores(task.parameters(), image)
        loss = task.loss_of_scores(scores, torch.arange(task.classes, device=like.device)) * task.classes
        derivatives = torch.autograd.grad(loss, image)[0].flatten(1).double()
        directions = scale * torch.linalg.pinv(derivatives, rtol=_SMALLEST)
        by_class = (derivatives @ directions).to(like.dtype)
        return cls(statistics, directions.to(like.dtype), by_class, scores[0].detach().softmax(0))

    def set_wave(self, wave: tuple[float, float] | None) -> None:
        """Let features be triangle waves with segments of a length and a beginning; None: the coordinates."""
        length, begin = wave or (1.0, 0.0)
        self.wave.copy_(torch.tensor([length, begin, float(wave is not None)]))

    def coordinates(self, x: Tensor) -> Tensor:
        """Whitened images `[B, inputs]`."""
        return self.statistics.whiten(x - self.statistics.mean).flatten(1)

    def images(self, coordinates: Tensor) -> Tensor:
        """Images `[B, *input]` in 0..1 of whitened ones."""
        colours: Tensor = self.statistics(coordinates.view(-1, *self.statistics.mean.shape))
        return (colours + self.statistics.mean).clamp(0, 1)

    def variances(self) -> Tensor:
        """How much of an image's variance each coordinate has, `[inputs]`."""
        return self.statistics.root.square().sum(-2).movedim(-1, 0).flatten()

    def forward(self, x: Tensor) -> Tensor:
        """The constant image, with gradients that hold the features of the inputs.

        Args:
            x: Inputs `[B, *input]`.

        Returns:
            The same shape.
        """
        z = self.coordinates(x)
        length, begin, folded = self.wave.unbind()
        shifts = (
            self.features(torch.where(folded > 0, triangle_wave(z, length, begin), z)) @ self.directions.T
        )
        shown: Tensor = _CONSTANT + shifts
        return shown.view_as(x)

    def read(self, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        """Return the mean features `[B, inputs]` of the images with the label of each image.

        Args:
            weight: The gradient of the layer, `[K, inputs]`.
            bias: That of its bias, `[K]`, which counts images instead of adding their features.
            labels: The labels `[B]`.
        """
        present, place = torch.unique(labels, return_inverse=True)
        system = self.by_class[present].T.double()
        sums: Tensor = torch.linalg.lstsq(system, torch.cat([weight, bias[:, None]], dim=1).double()).solution
        return (sums[:, :-1] / sums[:, -1:])[place].to(weight.dtype)


def folding_module(task: Task) -> FoldingModule:
    """Return the module in front of the model of a task.

    Raises:
        DataError: There is none.
    """
    front = task.model.front if isinstance(task.model, FrontedModel) else None
    if not isinstance(front, FoldingModule):
        raise DataError(
            field="model",
            value=type(task.model).__name__,
            expected="the model that folds sends, of its changed_task",
        )
    return front
