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


def triangle_wave(z: Tensor, length: Tensor | float, middle: Tensor | float) -> Tensor:
    """A wave that rises and falls by as much as z changes, with segments of a length.

    Args:
        z: Any values.
        length: The length of a segment, above 0.
        middle: Where a rising segment has its middle, and the wave the value 0.

    >>> triangle_wave(torch.tensor([0.0, 0.25, 0.75, 1.0]), 1.0, 0.0).tolist()
    [0.0, 0.25, 0.25, 0.0]
    """
    return length * (0.5 - (torch.remainder((z - middle + length / 2) / length, 2) - 1).abs())


class FoldingModule(nn.Module):
    """Shows the model a constant image; a layer of zeros in between has gradients that hold the features.

    The layer's inputs are the whitened coordinates of an image, or triangle waves of them. Its outputs, all
    zero, move the constant image in directions that tell classes apart: its gradient is a sum of features for
    each class. The sums of all classes depend on each other, so that a batch in which no class is absent is
    read less exactly. With batch norm samples depend on each other, which costs some exactness too.

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
        # Not part of the model's state, by which results are known: they follow from it but for rounding.
        self.register_buffer("directions", directions, persistent=False)
        self.register_buffer("by_class", by_class, persistent=False)
        self.register_buffer("probabilities", probabilities, persistent=False)
        # A tensor, changed in place: what is not a tensor is read once only, when a task is made.
        self.register_buffer("wave", torch.tensor([1.0, 0.0, 0.0]), persistent=False)
        self.features = nn.Linear(len(directions), directions.shape[1])
        nn.init.zeros_(self.features.weight)
        nn.init.zeros_(self.features.bias)

    @classmethod
    def for_task(cls, task: Task, scale: float, noise: NaturalNoise) -> "FoldingModule":
        """Return the module for a model.

        Args:
            task: The model and its loss.
            scale: The size of the derivatives of the loss for the outputs.
            noise: What whitens images of the task's shape; converted to the model's type.
        """
        like = next(iter(task.parameters().values()))
        image = torch.full(
            (task.classes, *task.input_shape), _CONSTANT, dtype=like.dtype, device=like.device
        ).requires_grad_()
        scores = task.scores(task.parameters(), image)
        loss = task.loss_of_scores(scores, torch.arange(task.classes, device=like.device)) * task.classes
        derivatives = torch.autograd.grad(loss, image)[0].flatten(1).double()
        directions = scale * torch.linalg.pinv(derivatives, rtol=_SMALLEST)
        by_class = (derivatives @ directions).to(like.dtype)
        return cls(noise, directions.to(like.dtype), by_class, scores[0].detach().softmax(0))

    def set_wave(self, wave: tuple[float, float] | None) -> None:
        """Let features be triangle waves with segments of a length and a middle; None: the coordinates."""
        length, middle = wave or (1.0, 0.0)
        self.wave.copy_(torch.tensor([length, middle, float(wave is not None)]))

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
        length, middle, folded = self.wave.unbind()
        shifts = self.features(torch.where(folded > 0, triangle_wave(z, length, middle), z))
        shown: Tensor = _CONSTANT + shifts @ self.directions.T
        return shown.view_as(x)

    def shares(self, bias: Tensor) -> Tensor:
        """How frequent each class is, up to a factor, `[V, classes]`; one class at least is taken as absent.

        Args:
            bias: The gradients of the layer's bias, `[V, K]`.
        """
        # But for a multiple of the probabilities, to which the sums of all classes add up to zero.
        found = (bias.double() @ torch.linalg.pinv(self.by_class.double(), rtol=_SMALLEST)).to(bias.dtype)
        known = self.probabilities.clamp_min(1e-6)
        shares: Tensor = found + (-found / known).amax(1, keepdim=True) * known
        return shares

    def read(self, weight: Tensor, bias: Tensor, labels: Tensor) -> Tensor:
        """Return the mean features `[B, inputs]` of the images with the label of each image.

        Args:
            weight: The gradient of the layer, `[K, inputs]`.
            bias: That of its bias, `[K]`, which counts images instead of adding their features.
            labels: The labels `[B]`.
        """
        present, place, counts = torch.unique(labels, return_inverse=True, return_counts=True)
        system = self.by_class[present].double()
        expected = counts.double() @ system
        # The share of one image in the gradient: its sums are over a batch, several steps or clients.
        share = (bias.double() @ expected / expected.square().sum()).abs().clamp_min(1e-30)
        sums: Tensor = torch.linalg.pinv(system.T, rtol=_SMALLEST) @ weight.double() / share
        means: Tensor = (sums / counts[:, None])[place]
        return means.nan_to_num(0, 0, 0).to(weight.dtype)


def check_foldable(task: Task) -> None:
    """Raise unless the module can be put in front of the model of a task.

    Raises:
        DataError: The inputs are no images of three channels, there are too few or too many classes, or the
            model computes in half precision.
    """
    shape = task.input_shape
    if len(shape) != 3 or shape[0] != 3:
        raise DataError(field="input shape", value=list(shape), expected="images [3, H, W] for folds")
    most = _MAX_WEIGHTS // math.prod(shape)
    if not 3 <= task.classes <= most:
        raise DataError(field="classes", value=task.classes, expected=f"3 to {most:,} for folds")
    dtype = next(iter(task.parameters().values())).dtype
    if dtype not in (torch.float32, torch.float64):
        raise DataError(field="model", value=dtype, expected="float32 or float64 for folds")


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
