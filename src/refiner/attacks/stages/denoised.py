"""A denoiser after another attack: it learns from reconstructions of public images what the attack misses."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.learning.network_training import TrainingSettings, TrainingState, attack_fingerprints
from refiner.attacks.learning.simulated_batches import derive_seed, draw_batches, simulate
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.simulation import Simulator
from refiner.attacks.stages.restoration import train_restorer
from refiner.attacks.stages.wrapped_attack import WrappedAttack
from refiner.attacks.threat_model import Capability, ThreatModel
from refiner.core.task import Task
from refiner.errors import DataError
from refiner.metrics.assignment import best_order

# One public image in so many is held out of the training.
_HELD_OUT = 8
# The training's share of the progress, a guess: the other attack takes most of the time.
_TRAINING_SHARE = 0.1


@dataclass(frozen=True)
class Denoised(WrappedAttack):
    """Runs another attack, then restores its reconstructions by a network that knows the attack's errors.

    Uploads of public images are simulated and reconstructed together with the victims'. A label-conditioned
    U-Net is trained on these reconstructions and their originals, and applied to those of the victims. On the
    command line it follows the attack: `inverting:iterations=1000+denoiser:images=500`.

    The attack may reconstruct outside of 0..1, as in `inverting:input_range=(-6,7)+denoiser`, which suits
    uploads of noisy images.

    >>> Denoised(images=100).name
    'inverting+denoiser'
    """

    stage: ClassVar[str] = "denoiser"
    reference: ClassVar[str] = (
        "Ronneberger, Fischer and Brox, U-Net: Convolutional Networks for Biomedical Image Segmentation, "
        "MICCAI 2015"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"public", "defense"})
    min_public_images: ClassVar[int] = 32
    reconstructs_public_images: ClassVar[bool] = True

    images: int = 512
    """Public images whose simulated uploads are attacked to learn from; as many as there are, if fewer."""
    epochs: int = 30
    """Passes over their reconstructions."""
    batch: int = 64
    """Reconstructions in a training step."""
    lr: float = 1e-3
    """The greatest learning rate of AdamW."""
    width: int = 16
    """Channels of the U-Net's finest level, a multiple of 8."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.integer("images", self.images, self.min_public_images)
        if checks.integer("width", self.width, 8) % 8:
            raise checks.wrong("width", self.width, "a multiple of 8")
        self._training()

    def _training(self) -> TrainingSettings:
        return TrainingSettings(self.epochs, self.batch, self.lr)

    def check(self, task: Task) -> None:
        """Raise if the other attack can't be run on `task`, or its inputs are no images.

        Args:
            task: The model and its loss.
        """
        super().check(task)
        if len(task.input_shape) != 3:
            raise DataError(
                field="input shape",
                value=list(task.input_shape),
                expected="images [C, H, W] for the denoiser",
            )

    def check_samples(self, samples: int) -> None:
        """Raise if the other attack can't reconstruct so many samples, or `images` are less than two batches.

        Args:
            samples: The samples of one observation.
        """
        super().check_samples(samples)
        if self.images < 2 * samples:
            expected = f"at least {2 * samples}, two batches of the victims' size"
            raise DataError(field="denoiser.images", value=self.images, expected=expected)

    def least_public_images(self, samples: int) -> int:
        """Return what both can learn from: for the denoiser two batches, or more."""
        return max(super().least_public_images(samples), 2 * samples)

    def stage_uploads(self, public: int, samples: int) -> int:
        """Return how many uploads are reconstructed to learn from."""
        return min(self.images, public) // samples

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Reconstruct victims and public images by the other attack, and restore the victims' images.

        Args:
            observations: One or more uploads of the same victims.
            threat: The capabilities granted.
            options: Seed, chunk, state file, progress, and the simulator.

        Returns:
            The restored reconstruction of every victim; `diverged` is True for all if the training diverged.
        """
        start = time.perf_counter()
        simulator, first = options.simulator, observations[0]
        assert simulator is not None
        self.check(first.task)
        batches = self._batches(simulator, first.samples, options.seed)
        fingerprints = attack_fingerprints(self.settings(), observations, simulator, options)
        state = TrainingState(options.resume, fingerprints)
        results = state.results(first.gradient.device)
        if not results:
            inner_state = None if options.resume is None else _inner_state_file(options.resume)
            progress = _Progress(options, self.epochs)
            inner = self.attack.run(
                _with_public_uploads(observations, simulator, batches, self._seed(options.seed, "noise")),
                threat,
                replace(options, resume=inner_state, on_progress=progress.attack),
            )
            results = self._restore(first.task, inner, simulator, batches, options.seed, state, progress)
            state.finish(results)
            if inner_state is not None:
                inner_state.unlink(missing_ok=True)
        return Reconstruction(
            results["x"],
            results["labels"],
            results["objective"],
            results["diverged"],
            time.perf_counter() - start,
        )

    def _seed(self, seed: int, *purpose: object) -> int:
        return derive_seed(seed, "denoiser", *purpose)

    def _batches(self, simulator: Simulator, samples: int, seed: int) -> Tensor:
        """The public images that are attacked, `[P, B]`; no image occurs twice."""
        generator = torch.Generator().manual_seed(self._seed(seed, "images"))
        passes = draw_batches(torch.arange(len(simulator.images)), samples, 1, generator)
        return passes[0][: self.stage_uploads(len(simulator.images), samples)]

    def _restore(
        self,
        task: Task,
        inner: Reconstruction,
        simulator: Simulator,
        batches: Tensor,
        seed: int,
        state: TrainingState,
        progress: "_Progress",
    ) -> dict[str, Tensor]:
        """The victims' restored images, labels, objectives, and whether they diverged, by name."""
        victims = len(inner.x) - len(batches)
        clean = simulator.images[batches.to(simulator.images.device)].to(inner.x)
        degraded, labels = inner.x[victims:], inner.labels[victims:]
        if batches.shape[1] > 1:
            order = best_order(degraded.clamp(0, 1), clean)
            labels = labels.gather(1, order)
            degraded = torch.stack([batch[rows] for batch, rows in zip(degraded, order, strict=True)])
        usable = degraded.flatten(2).isfinite().all(2) & ~inner.diverged[victims:, None]
        count = int(usable.sum())
        held_out = count // _HELD_OUT
        restorer = None
        if count >= self.min_public_images // 2:
            restorer = train_restorer(
                degraded[usable].float(),
                clean[usable].float(),
                labels[usable],
                classes=task.classes,
                held_out=held_out,
                width=self.width,
                settings=self._training(),
                seed=self._seed(seed, "training"),
                state=state,
                on_samples=lambda done: progress.training(done / (count - held_out)),
            )
        x = inner.x[:victims]
        diverged = inner.diverged[:victims]
        if restorer is None:
            x, diverged = x.clamp(0, 1), torch.ones_like(diverged)
        else:
            x = restorer(x.flatten(0, 1).float(), inner.labels[:victims].flatten()).view_as(x).to(x)
        labels, objective = inner.labels[:victims], inner.objective[:victims]
        return {"x": x, "labels": labels, "objective": objective, "diverged": diverged}


class _Progress:
    """The progress of both stages as one: that of the attack, and the training as a share of it."""

    def __init__(self, options: RunOptions, epochs: int) -> None:
        self._report, self._epochs, self._units = options.on_progress, epochs, 1

    def attack(self, done: int, total: int) -> None:
        """Report that `done` of the `total` units of the attack are done."""
        self._units = total
        self._report(done, self._total())

    def training(self, epochs: float) -> None:
        """Report that so many epochs of the training are done."""
        rest = self._total() - self._units
        self._report(self._units + round(rest * epochs / self._epochs), self._total())

    def _total(self) -> int:
        return self._units + max(1, round(_TRAINING_SHARE * self._units))


def _with_public_uploads(
    observations: list[Observation], simulator: Simulator, batches: Tensor, seed: int
) -> list[Observation]:
    """The observations with simulated clients after the victims."""
    values = sum(o.gradient.shape[1] for o in observations)
    chunks = [uploads.gradients for _, uploads in simulate(simulator, [batches], seed, values)]
    combined = []
    for observation, *simulated in zip(observations, *chunks, strict=True):
        gradient = torch.cat([observation.gradient, *(g.to(observation.gradient) for g in simulated)])
        labels = observation.labels
        if labels is not None:
            public = simulator.labels[batches.to(simulator.labels.device)].to(labels.device)
            labels = torch.cat([labels, public])
        combined.append(replace(observation, gradient=gradient, labels=labels))
    return combined


def _inner_state_file(path: Path) -> Path:
    """Where the other attack saves its state, beside the denoiser's."""
    return path.with_suffix(f".inner{path.suffix}")
