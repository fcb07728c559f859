"""Activation inversion: a convolution's input read off its gradient, then the image with that activation."""

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.base import Attack, Reconstruction, RunOptions
from refiner.attacks.chunk_size import victims_per_chunk
from refiner.attacks.closed_form.conv_inputs import conv_input
from refiner.attacks.closed_form.conv_layers import ConvLayer, revealing_layer
from refiner.attacks.label_inference import known_labels
from refiner.attacks.matching.descent import AdamDescent, DescentState
from refiner.attacks.matching.gradient_matching import decay_fractions
from refiner.attacks.matching.parametrisation import Pixels
from refiner.attacks.matching.priors import Guess, TotalVariation
from refiner.attacks.observation import Observation
from refiner.attacks.threat_model import ThreatModel
from refiner.core.input_range import UNIT_RANGE, InputRange, from_unit_range
from refiner.core.module_inputs import first_module_input
from refiner.core.noise import NoiseSource
from refiner.core.optim import Adam
from refiner.core.precision import tensor_float32
from refiner.core.task import Parameters, Task
from refiner.errors import DataError

# Iterations between two reports of progress.
_ITERATIONS_PER_BLOCK = 20


@dataclass(frozen=True)
class ActivationInversion(Attack):
    """Inverts an activation of a ResNet that the gradient reveals exactly: for single images.

    The gradient of a convolution with fewer positions than output channels, as in the third stage of a
    ResNet, reveals the convolution's input up to a factor (`conv_inputs`). An image is then optimised until
    its activation there has the same direction, as in the inversion of representations by Mahendran and
    Vedaldi (CVPR 2015). Neither step needs the label or second derivatives.

    A model that normalises the output of a first convolution without bias, as the ResNets here, has the same
    gradient for an image and for a brighter copy of it: the brightness is then a guess.

    >>> ActivationInversion(iterations=100).name
    'activations'
    """

    name: ClassVar[str] = "activations"
    reference: ClassVar[str] = (
        "the span of a layer's inputs as in Dimitrov, Baader, Müller and Vechev, SPEAR, NeurIPS 2024, for "
        "convolutions; their inversion as in Mahendran and Vedaldi, Understanding Deep Image Representations "
        "by Inverting Them, CVPR 2015"
    )
    single_only: ClassVar[str | None] = "of more samples activations would find a sum of activations"

    iterations: int = 500
    """Steps of Adam."""
    lr: float = 0.2
    """Learning rate of Adam."""
    decayed: bool = True
    """Whether the learning rate is divided by ten after 3/8, 5/8 and 7/8 of the iterations."""
    total_variation: float = 1e-2
    """Weight of the prior; models with batch norm need more, about 0.3."""
    input_range: InputRange = UNIT_RANGE
    """The lowest and the highest value of a pixel, or those of every channel: `((l1, …), (h1, …))`."""

    def __post_init__(self) -> None:
        checks.integer("iterations", self.iterations, 1)
        checks.flag("decayed", self.decayed)
        Adam(lr=self.lr)
        TotalVariation(self.total_variation)
        Pixels.from_range(self.input_range)

    def check(self, task: Task) -> None:
        """Raise unless the model has a convolution whose gradient reveals its input.

        Args:
            task: The model and its loss.

        Raises:
            DataError: The model has no such layer.
            SettingError: `input_range` has another number of channels.
        """
        Pixels.from_range(self.input_range).check(task)
        _layer(task, self.name)

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Reconstruct the images.

        Args:
            observations: One upload of every victim; of several the first is used.
            threat: The capabilities granted.
            options: The seed of the starts, the chunk and the progress.

        Returns:
            The images. The objective is the cosine distance between the activations, plus the prior.

        Raises:
            DataError: No layer's gradient reveals its input.
        """
        start = time.perf_counter()
        first = observations[0]
        layer = _layer(first.task, self.name)
        pixels = Pixels.from_range(self.input_range)
        task = first.task if pixels.channels is None else first.task.with_unit_inputs(pixels.channels)
        first = replace(first, task=task)
        chunk = options.chunk or victims_per_chunk(first, 1, 4)
        states = []
        with tensor_float32(False), torch.no_grad():
            for begin in range(0, first.victims, chunk):
                ids = torch.arange(begin, min(begin + chunk, first.victims), device=first.gradient.device)
                states.append(self._invert(first, layer, pixels, ids, options))
        z, objective, diverged = (
            torch.cat(parts)
            for parts in zip(*((s.best_z, s.best_value, s.diverged) for s in states), strict=True)
        )
        labels = known_labels(observations, threat)
        x = pixels.result(task, z, labels)
        if pixels.channels is not None:
            x = from_unit_range(x, pixels.channels, len(task.input_shape))
        return Reconstruction(x, labels.to(x.device), objective, diverged, time.perf_counter() - start)

    def _invert(
        self, first: Observation, layer: ConvLayer, pixels: Pixels, ids: Tensor, options: RunOptions
    ) -> DescentState:
        """The images of the victims `ids` whose activations have the directions that their uploads reveal."""
        task, total = first.task, first.victims * self.iterations
        gradients = task.unflatten(first.gradient[ids])[layer.weight]
        target = torch.stack([conv_input(gradient, layer) for gradient in gradients]).to(first.gradient)
        evaluate = partial(
            _evaluate, task, first.parameters, layer, target, TotalVariation(self.total_variation)
        )
        project = partial(pixels.project, task)
        descent = AdamDescent(Adam(lr=self.lr), decay_fractions(self.decayed), self.iterations, project)
        source = NoiseSource(seed=options.seed)
        state = descent.init(pixels.initial(task, source, ids[:, None], target.dtype), evaluate)
        for begin in range(0, self.iterations, _ITERATIONS_PER_BLOCK):
            until = min(begin + _ITERATIONS_PER_BLOCK, self.iterations)
            state = descent.advance(state, evaluate, begin, until)
            options.on_progress(int(ids[0]) * self.iterations + len(ids) * until, total)
        return state


def _evaluate(
    task: Task, parameters: Parameters, layer: ConvLayer, target: Tensor, prior: TotalVariation, z: Tensor
) -> tuple[Tensor, Tensor]:
    """The objective `[V]` of images `z [V, 1, *input]`, and its gradient."""
    with torch.enable_grad():
        x = z.detach().requires_grad_()
        # Batch norm uses each victim's own statistics, so that victims can't share a batch.
        activation = torch.func.vmap(lambda image: first_module_input(task, parameters, image, layer.name))(x)
        cosine = torch.cosine_similarity(activation.flatten(1), target.flatten(1))
        value = 1 - cosine + prior(Guess(x, x, task, (), 1))
        (gradient,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), gradient


def _layer(task: Task, attack: str) -> ConvLayer:
    layer = revealing_layer(task)
    if layer is None:
        raise DataError(
            field="model",
            value=type(task.model).__name__,
            expected="a convolution with overlapping patches and at least as many output channels as "
            f"positions, as in the third stage of a ResNet, whose input {attack} reads",
        )
    return layer
