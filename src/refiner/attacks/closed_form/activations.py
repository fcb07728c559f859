"""Activation inversion: a convolution's input read off its gradient, then the image with that activation."""

import time
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.base import Attack
from refiner.attacks.chunk_size import victims_per_chunk
from refiner.attacks.closed_form.conv_inputs import conv_input
from refiner.attacks.closed_form.conv_layers import ConvLayer, revealing_layer
from refiner.attacks.label_inference import known_labels
from refiner.attacks.matching.descent import AdamDescent, DescentState
from refiner.attacks.matching.gradient_matching import decay_fractions
from refiner.attacks.matching.parametrisation import Pixels
from refiner.attacks.matching.priors import Guess, TotalVariation
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.threat_model import ThreatModel
from refiner.core.input_range import UNIT_RANGE, InputRange, from_unit_range
from refiner.core.lbfgs import Evaluate
from refiner.core.module_inputs import first_module_input, mixes_samples
from refiner.core.noise import NoiseSource
from refiner.core.optim import Adam
from refiner.core.precision import tensor_float32
from refiner.core.task import Parameters, Task
from refiner.errors import DataError

# How grey the first guess is; the rest is noise.
_GREY = 0.9
# An image and one half as bright have the same activation if their objectives are so close.
_SAME = 1e-4


@dataclass(frozen=True)
class ActivationInversion(Attack):
    """Inverts an activation of a ResNet that the gradient reveals exactly: for single images.

    The gradient of a convolution with fewer positions than output channels, as in the third stage of a
    ResNet, reveals the convolution's input up to a factor (`conv_inputs`). An image is then optimised until
    its activation there has the same direction, as in the inversion of representations by Mahendran and
    Vedaldi (CVPR 2015). Neither step needs the label or second derivatives.

    The image starts grey, and a prior for smooth images, which fades, leads it through the layers of a deep
    model. A model that normalises the output of a first convolution without bias, as the ResNets here, has
    the same gradient for an image and for a brighter copy of it: its brightest value is then taken as white.

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
    lr: float = 0.1
    """Learning rate of Adam."""
    decayed: bool = True
    """Whether learning rate and prior are divided by ten after 3/8, 5/8 and 7/8 of the iterations."""
    total_variation: float = 0.6
    """Weight of the prior at first: it leads through the layers of a deep model to an image."""
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
        task, total, fractions = first.task, first.victims * self.iterations, decay_fractions(self.decayed)
        gradients = task.unflatten(first.gradient[ids])[layer.weight]
        target = torch.stack([conv_input(gradient, layer) for gradient in gradients]).to(first.gradient)
        descent = AdamDescent(Adam(lr=self.lr), fractions, self.iterations, partial(pixels.project, task))
        noise = pixels.initial(task, NoiseSource(seed=options.seed), ids[:, None], target.dtype)
        start = noise.lerp(noise.new_tensor((pixels.low + pixels.high) / 2), _GREY)
        evaluate = partial(_evaluate, task, first.parameters, layer, target)
        state = descent.init(start, partial(evaluate, TotalVariation(self.total_variation)))
        for begin in range(self.iterations):
            decay = 0.1 ** sum(begin >= fraction * self.iterations for fraction in fractions)
            prior = TotalVariation(decay * self.total_variation)
            state = descent.advance(state, partial(evaluate, prior), begin, begin + 1)
            options.on_progress(int(ids[0]) * self.iterations + len(ids) * (begin + 1), total)
        compare = partial(evaluate, TotalVariation(0))
        return state._replace(best_z=_brightened(state.best_z, pixels, compare))


def _evaluate(
    task: Task, parameters: Parameters, layer: ConvLayer, target: Tensor, prior: TotalVariation, z: Tensor
) -> tuple[Tensor, Tensor]:
    """The objective `[V]` of images `z [V, 1, *input]`, and its gradient."""
    with torch.enable_grad():
        x = z.detach().requires_grad_()
        front = partial(first_module_input, task, parameters, module=layer.name)
        activation = torch.func.vmap(front)(x) if mixes_samples(task) else front(x.flatten(0, 1))
        cosine = torch.cosine_similarity(activation.flatten(1), target.flatten(1))
        value = 1 - cosine + prior(Guess(x, x, task, (), 1))
        (gradient,) = torch.autograd.grad(value.sum(), x)
    return value.detach(), gradient


def _brightened(z: Tensor, pixels: Pixels, evaluate: Evaluate) -> Tensor:
    """Images `z` stretched to the end of the range, where the activation leaves their brightness open."""
    unseen = (evaluate(z / 2)[0] - evaluate(z)[0]).abs() < _SAME
    reach = torch.where(z < 0, z / pixels.low, z / pixels.high).flatten(1).amax(1)
    factor = torch.where(unseen & (reach > 0), 1 / reach, 1)
    return z * factor.view(-1, *(1 for _ in z.shape[1:]))


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
