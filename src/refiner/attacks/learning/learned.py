"""The learned attack: a network from uploads to images, trained on uploads that the attacker simulates."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from refiner import checks
from refiner.attacks.base import Attack
from refiner.attacks.label_inference import infer_labels
from refiner.attacks.learning.learned_network import ImagePredictor
from refiner.attacks.learning.linear_estimate import LinearEstimate
from refiner.attacks.learning.network_training import (
    TrainingSettings,
    TrainingState,
    attack_fingerprints,
    train_network,
)
from refiner.attacks.learning.simulated_batches import canonical_rank, derive_seed, draw_batches, simulate
from refiner.attacks.learning.upload_inputs import UploadInputs
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.simulation import Simulator
from refiner.attacks.threat_model import Capability, ThreatModel

# One public image in so many is held out of the training, to measure how good the network is.
_HELD_OUT = 20
# Public images that are needed for each image of a client's batch.
_IMAGES_PER_SAMPLE = 4


@dataclass(frozen=True)
class LearnedReconstruction(Attack):
    """Trains a network on simulated uploads of public images and applies it to the victims' uploads.

    Wu, Chen, Guo and Weinberger, "Learning to Invert: Simple Adaptive Attacks for Gradient Inversion in
    Federated Learning", UAI 2023. Inputs are the entries of the upload, projected where there are many, and
    for a single sample the inputs of linear layers; several uploads are one input. The target is the image
    less the mean image. The images of a batch are in the order of their labels. Deviations from the mean
    image are finally scaled by a factor that is best for public images held out of the training.

    >>> LearnedReconstruction(epochs=3).needs == {"public", "defense"}
    True
    """

    name: ClassVar[str] = "learned"
    reference: ClassVar[str] = (
        "Wu, Chen, Guo and Weinberger, Learning to Invert: Simple Adaptive Attacks for Gradient Inversion in "
        "Federated Learning, UAI 2023"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"public", "defense"})
    min_public_images: ClassVar[int] = 16

    epochs: int = 10
    """Passes over the simulated uploads."""
    batch: int = 512
    """Images in a training step."""
    lr: float = 1e-3
    """The greatest learning rate of AdamW."""
    draws: int = 2
    """Simulated uploads for every public image, each with another secret."""
    hidden: int = 3072
    """Width of the fully connected layers."""
    width: int = 48
    """Channels of the U-Net's finest level, a multiple of 8; 0 for no U-Net."""
    max_inputs: int = 16384
    """Larger uploads are projected to so many values."""

    def __post_init__(self) -> None:
        self._training()
        checks.integer("draws", self.draws, 1)
        checks.integer("hidden", self.hidden, 1)
        checks.integer("max_inputs", self.max_inputs, 1)
        if checks.integer("width", self.width, 0) % 8:
            raise checks.wrong("width", self.width, "a multiple of 8")

    def _training(self, samples: int = 1) -> TrainingSettings:
        batch = checks.integer("batch", self.batch, 1)
        return TrainingSettings(self.epochs, max(1, batch // samples), self.lr)

    def least_public_images(self, samples: int) -> int:
        """Return four times the batch size, or more."""
        return max(self.min_public_images, _IMAGES_PER_SAMPLE * samples)

    def simulated_uploads(self, public: int, samples: int) -> int:
        """Return the uploads that the network learns from: every image is in so many for each of a batch."""
        return self.draws * public

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Train the network and apply it to the victims.

        Args:
            observations: One or more uploads of the same victims.
            threat: The capabilities granted.
            options: Seed, state file, progress, and the simulator.

        Returns:
            A reconstruction of every victim; `objective` is the mean squared error for the public images that
            were held out. If the training diverged, the mean image, and `diverged` for every victim.
        """
        start = time.perf_counter()
        simulator, first = options.simulator, observations[0]
        assert simulator is not None
        granted = first.labels if threat.labels else None
        labels = (infer_labels(*observations) if granted is None else granted.sort(1).values).to(
            first.gradient.device
        )
        fingerprints = attack_fingerprints(self.settings(), observations, simulator, options)
        state = TrainingState(options.resume, fingerprints)
        results = state.results(first.gradient.device)
        if not results:
            learning = _Learning(self, observations, labels, granted is not None, simulator, options)
            results = learning.results(state)
            state.finish(results)
        return Reconstruction(
            results["x"], labels, results["objective"], results["diverged"], time.perf_counter() - start
        )


class _Learning:
    """One run: the simulated uploads, the network, and what it makes of the victims' uploads."""

    def __init__(
        self,
        attack: LearnedReconstruction,
        observations: list[Observation],
        labels: Tensor,
        labels_granted: bool,
        simulator: Simulator,
        options: RunOptions,
    ) -> None:
        self.attack, self.observations, self.options = attack, observations, options
        self.simulator, self.victim_labels, self.labels_granted = simulator, labels, labels_granted
        first = observations[0]
        self.task, self.samples, self.device = first.task, first.samples, first.gradient.device
        self.images = simulator.images.to(self.device).float()
        self.labels = simulator.labels.to(self.device)
        self.inputs = UploadInputs(
            self.task, self.samples, len(observations), attack.max_inputs, self.seed("projection")
        )

    def seed(self, *purpose: object) -> int:
        return derive_seed(self.options.seed, "learned", *purpose)

    def results(self, state: TrainingState) -> dict[str, Tensor]:
        """Return the victims' images, the objective and whether the training diverged, by name."""
        generator = torch.Generator().manual_seed(self.seed("batches"))
        shuffled = torch.randperm(len(self.images), generator=generator)
        rest = max(self.samples, len(shuffled) // _HELD_OUT)
        parts = {"training": shuffled[rest:], "held out": shuffled[:rest]}
        passes = {
            name: draw_batches(numbers, self.samples, self.attack.draws, generator)
            for name, numbers in parts.items()
        }
        counts = {name: sum(map(len, batches)) for name, batches in passes.items()}
        total = sum(counts.values()) + self.attack.epochs * counts["training"]

        def progress(before: int) -> Callable[[int], None]:
            # The last unit is for the victims themselves.
            return lambda done: self.options.on_progress(before + done, total + 1)

        training = self.simulate("training", passes["training"], progress(0))
        held_out = self.simulate("held out", passes["held out"], progress(counts["training"]))
        mean = self.images[parts["training"].to(self.device)].mean(0)
        deviations = self.images - mean
        linear = LinearEstimate.learn(deviations, self.inputs.revealed, training, held_out)
        predictor = ImagePredictor(
            training[0].shape[1],
            linear,
            self.attack.hidden,
            self.attack.width,
            self.device,
            self.seed("weights"),
        )

        def loss(index: Tensor) -> Tensor:
            inputs, batches = (t[index.to(t.device)] for t in training)
            return F.mse_loss(predictor(inputs), deviations[batches.to(self.device)])

        finite = train_network(
            predictor.network,
            loss,
            counts["training"],
            self.attack._training(self.samples),
            seed=self.seed("order"),
            state=state,
            on_samples=progress(sum(counts.values())),
        )
        victims = len(self.observations[0].gradient)
        objective = torch.full((victims,), torch.inf, device=self.device)
        x = mean.expand(victims, self.samples, *mean.shape).clone()
        if finite:
            objective[:] = predictor.calibrate(held_out[0], deviations[held_out[1].to(self.device)])
            x += predictor.predict(self.victim_inputs())
        low, high = self.images.aminmax()
        self.options.on_progress(total + 1, total + 1)
        return {
            "x": x.clamp(low, high).to(self.observations[0].gradient.dtype),
            "objective": objective,
            "diverged": torch.full((victims,), not finite, device=self.device),
        }

    def simulate(
        self, part: str, passes: list[Tensor], on_clients: Callable[[int], None]
    ) -> tuple[Tensor, Tensor]:
        """The inputs `[U, D]` of simulated uploads, in half precision, and the batches `[U, B]` they are of.

        The first uploads, which are for the training, set the scale of the inputs.
        """
        rank = canonical_rank(self.images, self.labels).cpu()
        ordered = [batches.gather(1, rank[batches].argsort(1)) for batches in passes]
        batches = torch.cat(ordered)
        clients = simulate(
            self.simulator,
            ordered,
            self.seed(part),
            self.task.size * len(self.observations),
            on_clients,
        )
        inputs = torch.empty(0)
        for rows, uploads in clients:
            labels = self.known_labels(uploads.gradients, self.labels[batches[rows].to(self.device)])
            if not self.inputs.is_fitted:
                self.inputs.fit(uploads.gradients, labels)
            chunk = self.with_labels(self.inputs(uploads.gradients, labels), labels)
            if not rows.start:
                inputs = _storage(len(batches), chunk)
            inputs[rows] = chunk.to(inputs)
        return inputs, batches

    def victim_inputs(self) -> Tensor:
        """The inputs `[V, D]` of the victims' uploads."""
        gradients = [observation.gradient for observation in self.observations]
        return self.with_labels(self.inputs(gradients, self.victim_labels), self.victim_labels)

    def known_labels(self, gradients: Sequence[Tensor], labels: Tensor) -> Tensor:
        """The labels of simulated clients as the attacker would know them: granted, or inferred."""
        if self.labels_granted:
            return labels
        pairs = zip(self.observations, gradients, strict=True)
        return infer_labels(*(replace(o, gradient=gradient, labels=None) for o, gradient in pairs))

    def with_labels(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """The batch's labels, where the threat model grants them, before the inputs."""
        if not self.labels_granted:
            return inputs
        return torch.cat([F.one_hot(labels, self.task.classes).flatten(1).to(inputs), inputs], dim=1)


def _storage(count: int, example: Tensor) -> Tensor:
    """An empty tensor for `count` rows like those of `example`: on its device if half of that is enough."""
    size = 2 * count * example.shape[1]
    fits = not example.is_cuda or size < torch.cuda.mem_get_info(example.device)[0] / 2
    device = example.device if fits else torch.device("cpu")
    return torch.empty(count, example.shape[1], dtype=torch.float16, device=device)
