"""Folded images: a server that makes up models reads batches that a defence searches."""

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.attacks.base import Attack
from refiner.attacks.changed_model.coordinate_estimate import CoordinateEstimate, Reading
from refiner.attacks.changed_model.folding_module import (
    FoldingModule,
    check_foldable,
    folding_module,
    triangle_wave,
)
from refiner.attacks.changed_model.front_module import put_in_front
from refiner.attacks.label_inference import labels_in_shares
from refiner.attacks.learning.simulated_batches import derive_seed
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.simulation import KnownDefense, Simulator
from refiner.attacks.threat_model import Capability, ThreatModel
from refiner.core.task import Task
from refiner.errors import DataError
from refiner.shaped_noise import NOISE_STATISTICS, NaturalNoise

# The length of a segment in units of the radius, and the middle of a rising one in standard deviations.
_WAVES = [(0.9, 0.0), (0.72, 0.2), (0.55, 0.1), (0.9, 0.45), (0.8, 0.3)]
# Where the defence is not known to be another: the radius and the white part of Refiner's default.
_RADIUS, _WHITE = 1.0, 0.8
# Public images whose coordinates are the prior.
_PRIOR_IMAGES = 2000
Layer = tuple[Tensor, Tensor]
"""Gradients of a layer's weights `[V, K, inputs]` and biases `[V, K]`."""


@dataclass(frozen=True)
class Folds(Attack):
    """Folds images by a module in front of the model, and reads them off a few uploads of the same batch.

    The module's features are triangle waves of every whitened coordinate of an image. However strong a noise
    that a defence adds, on the segment of the noisy coordinate lies a point with the feature of the real one:
    a search towards the real gradient finds it, and the upload shows it. Waves of several lengths, and at
    last the coordinates themselves, leave one value for each. How uploads err is learned from simulated ones.

    Images of a batch that share their label are read as their mean. Local steps let the layer with the
    features leave zero: with several take a smaller `scale`.

    >>> Folds().rounds, Folds(uploads=2).waves
    (6, [(0.9, 0.0), None])
    """

    name: ClassVar[str] = "folds"
    reference: ClassVar[str] = "made for Refiner's search; after Fowl et al., Robbing the Fed, ICLR 2022"
    needs: ClassVar[frozenset[Capability]] = frozenset({"changed_model", "public", "defense"})
    min_public_images: ClassVar[int] = 200

    uploads: int = 6
    """Uploads of each client, for as many models."""
    radius: float | None = None
    """How far the defence searches, in standard deviations of a coordinate: segments are a little shorter.
    None for what the defence in an audit says, or 1 where it says nothing."""
    scale: float = 10.0
    """The size of the gradients that hold the features, beside those of the model."""
    simulated: int = 64
    """Public images whose uploads are simulated: half of them show how uploads err, the other half how many
    uploads help."""
    noise: NaturalNoise | None = field(default=None, repr=False, compare=False)
    """The defence's noise: coordinates are in its units. None for that of the defence in an audit, or of
    Refiner's default where the defence has none."""

    def __post_init__(self) -> None:
        checks.integer("uploads", self.uploads, 1, len(_WAVES) + 1)
        if self.radius is not None:
            checks.number("radius", self.radius, 0, 1e3, above=True)
        checks.number("scale", self.scale, 0, 1e6, above=True)
        checks.integer("simulated", self.simulated, 2, 100_000)
        if self.noise is not None and not isinstance(self.noise, NaturalNoise):
            raise checks.wrong("noise", self.noise, "a NaturalNoise or None")

    @property
    def rounds(self) -> int:
        """The uploads of each client."""
        return self.uploads

    @property
    def waves(self) -> list[tuple[float, float] | None]:
        """Length and middle of the waves of every upload; None in the last, which shows coordinates.

        It is the last because a search can't reach them, and error feedback would add what it left over to
        the uploads that follow.
        """
        radius = _RADIUS if self.radius is None else self.radius
        return [*((radius * length, middle) for length, middle in _WAVES[: self.uploads - 1]), None]

    def settings(self) -> dict[str, object]:
        """Return the settings by name; the noise is among the `networks`."""
        return {name: value for name, value in super().settings().items() if name != "noise"}

    def networks(self, task: Task) -> Mapping[str, nn.Module]:
        """Return the defence's noise, if it is known.

        Args:
            task: The model and its loss.
        """
        return {} if self.noise is None else {"noise": self.noise}

    def prepared(self, public: Tensor, defense: KnownDefense) -> Self:
        """Return the attack with the defence's noise and radius, where none are set.

        Args:
            public: Public images `[N, C, H, W]`.
            defense: What is known of the defence.
        """
        noise, radius = defense.networks.get(NOISE_STATISTICS), defense.settings.get("radius")
        return replace(
            self,
            noise=noise if self.noise is None and isinstance(noise, NaturalNoise) else self.noise,
            radius=radius if self.radius is None and isinstance(radius, float | int) else self.radius,
        )

    def check(self, task: Task) -> None:
        """Raise unless images of the task can be folded.

        Args:
            task: The model and its loss.

        Raises:
            DataError: The inputs are no images of three channels, there are too few or too many classes, or
                the model computes in half precision.
        """
        check_foldable(task)

    def check_labels(self, labels: Tensor) -> None:
        """Raise unless some image has a label of its own in its batch.

        Args:
            labels: The labels of batches `[V, B]`.

        Raises:
            DataError: None has.
        """
        if not bool(_alone(labels).any()):
            raise DataError(
                field="labels",
                value=labels[0].tolist(),
                expected="different ones in a batch: folds reads the mean of images with one label",
            )

    def changed_task(self, task: Task, samples: int) -> Task:
        """Return the task with the module in front of the model.

        Args:
            task: The model and its loss.
            samples: The samples of one observation.

        Returns:
            The task that clients receive, as in the first round.

        Raises:
            DataError: Nothing can be put in front of the model, or its inputs are no images.
        """
        self.check(task)
        put_in_front(task, nn.Identity())  # a model that takes no batches is refused before it is measured
        changed = put_in_front(task, FoldingModule.for_task(task, self.scale, self._noise(task)))
        self.send_in_round(changed, 0)
        return changed

    def send_in_round(self, task: Task, round: int) -> None:
        """Set the model to what all clients receive in a round.

        Args:
            task: The result of `changed_task`.
            round: The number of the round.
        """
        folding_module(task).set_wave(self.waves[round])

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Read the features off every upload, and estimate the images that have them.

        Args:
            observations: The uploads of the rounds, in order.
            threat: The capabilities granted.
            options: The simulator, the seed of its clients, and progress.

        Returns:
            The images, from as many readings as help with simulated clients.

        Raises:
            DataError: There are fewer or more uploads than rounds, or labels are granted
                and no image has one of its own.
        """
        start = time.perf_counter()
        first, simulator = observations[0], options.simulator
        assert simulator is not None
        if len(observations) != self.uploads:
            raise DataError(field="observations", value=len(observations), expected=f"{self.uploads} uploads")
        front, layers = folding_module(first.task), [self._layer(o.task, o.gradient) for o in observations]
        labels = first.labels if threat.labels else None
        if labels is None:
            bias = torch.stack([bias for _, bias in layers]).mean(0)
            labels = labels_in_shares(front.shares(bias), first.samples)
        labels = labels.to(first.gradient.device)
        if threat.labels:
            self.check_labels(labels)
        read = self._read(front, layers, labels)
        coordinates = self._estimate(front, first, simulator, options, read)
        x = front.images(coordinates).view(len(labels), first.samples, *first.task.input_shape)
        objective = (read[0] - coordinates).square().view(len(labels), -1).mean(1)
        # What is not finite was read as zero.
        diverged = ~torch.stack([o.gradient.isfinite().all(1) for o in observations]).all(0)
        return Reconstruction(x, labels, objective, diverged, time.perf_counter() - start)

    def simulated_uploads(self, public: int, samples: int) -> int:
        """Return how many clients are simulated."""
        return max(2, -(-self.simulated // samples))

    def _estimate(
        self,
        front: FoldingModule,
        like: Observation,
        simulator: Simulator,
        options: RunOptions,
        read: list[Tensor],
    ) -> Tensor:
        """The coordinates `[V · B, inputs]` of all images, from what was read of them."""
        clients = self.simulated_uploads(len(simulator.images), like.samples)
        generator = torch.Generator().manual_seed(derive_seed(options.seed, "folds", "images"))
        order = torch.randperm(len(simulator.images), generator=generator)
        chosen = order[torch.arange(clients * like.samples) % len(order)].view(clients, -1)
        # Labels are the attacker's choice: as many as possible differ, and one class is absent.
        labels = torch.arange(like.samples).clamp_max(like.task.classes - 2).expand(clients, -1)
        layers: list[list[Layer]] = [[] for _ in range(self.uploads)]
        for number, rows in enumerate(chosen):
            options.on_progress(number, clients)
            own = simulator.images[rows.to(simulator.images.device)][None]
            seed = derive_seed(options.seed, "folds", "client", number)
            gradients = simulator.protect(own, labels[number : number + 1], seed).gradients
            for kept, gradient in zip(layers, gradients, strict=True):
                kept.append(self._layer(like.task, gradient))
        options.on_progress(clients, clients)
        joined = [(torch.cat([w for w, _ in own]), torch.cat([b for _, b in own])) for own in layers]
        labels = labels.to(like.gradient.device)
        alone = _alone(labels).flatten()
        simulated = [values[alone] for values in self._read(front, joined, labels)]

        def coordinates(numbers: Tensor) -> Tensor:
            return front.coordinates(simulator.images[numbers.to(simulator.images.device)].to(like.gradient))

        truth = coordinates(chosen.flatten())[alone]
        others = order[chosen.numel() :][:_PRIOR_IMAGES]
        half = len(truth) // 2
        estimate = CoordinateEstimate(
            self._readings(),
            coordinates(others if len(others) > len(truth) else order[:_PRIOR_IMAGES]),
            [values[:half] for values in simulated],
            truth[:half],
            front.variances(),
        )

        def candidates(values: list[Tensor]) -> list[Tensor]:
            return [values[0], *estimate(values)]

        target = front.images(truth[half:])
        errors = [
            float((front.images(found) - target).square().mean())
            for found in candidates([values[half:] for values in simulated])
        ]
        return candidates(read)[min(range(len(errors)), key=errors.__getitem__)]

    def _noise(self, task: Task) -> NaturalNoise:
        """A copy of the noise that coordinates are in units of: a model's parts are converted to its type."""
        device = next(iter(task.parameters().values())).device
        if self.noise is not None:
            return copy.deepcopy(self.noise).to(device).for_shape(task.input_shape)
        return copy.deepcopy(NaturalNoise.bundled(device)).for_shape(task.input_shape).with_white(_WHITE)

    def _layer(self, task: Task, gradient: Tensor) -> Layer:
        """The gradients of the layer that holds the features, in uploads `[V, N]`."""
        named = task.unflatten(gradient)
        return named["front.features.weight"].clone(), named["front.features.bias"].clone()

    def _read(self, front: FoldingModule, layers: Sequence[Layer], labels: Tensor) -> list[Tensor]:
        """The features `[V · B, inputs]` in every upload, the coordinates themselves first."""
        return [
            torch.cat([front.read(*victim) for victim in zip(*layer, labels, strict=True)])
            for layer in [layers[-1], *layers[:-1]]
        ]

    def _readings(self) -> list[Reading]:
        """What the uploads show of coordinates, in the order of `_read`."""
        waves = [wave for wave in self.waves if wave is not None]
        return [lambda z: z, *(partial(triangle_wave, length=length, middle=m) for length, m in waves)]


def _alone(labels: Tensor) -> Tensor:
    """Which of the labels `[V, B]` no other image of the batch has."""
    return (labels[:, :, None] == labels[:, None]).sum(2) == 1
