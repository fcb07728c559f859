"""The adaptive attack of the Refiner paper: a gradient at the expected distance of the upload is attacked."""

import time
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks.learning.simulated_batches import derive_seed
from refiner.attacks.observation import Observation
from refiner.attacks.reconstruction import Reconstruction
from refiner.attacks.run_options import RunOptions
from refiner.attacks.simulation import Simulator
from refiner.attacks.stages.wrapped_attack import WrappedAttack
from refiner.attacks.threat_model import Capability, ThreatModel
from refiner.core.gradients import flatten, gradients
from refiner.core.task import Task
from refiner.errors import DataError

Start = Literal["near", "random", "zero"]


@dataclass(frozen=True)
class Adaptive(WrappedAttack):
    """Looks for the real gradient g where Refiner's utility metric says it is, and attacks what it finds.

    Who knows Refiner knows about how far its uploads g* are from the real gradient, in its utility metric
    ‖g* − g‖² with weights |g θ|. The server solves that equation for g by gradient descent and attacks the
    solution. The equation has one row for thousands of unknowns, so that the solution is g* plus noise of the
    right length; the paper leaves start and distance open. Here the distance is the mean of uploads of public
    images, and three starts are offered. On the command line it follows the other attack:
    `inverting:iterations=1000+adaptive:start=random`.

    >>> Adaptive(start="zero").name
    'inverting+adaptive'
    """

    stage: ClassVar[str] = "adaptive"
    reference: ClassVar[str] = (
        "Fan et al., Refiner: Data Refining against Gradient Leakage Attacks in Federated Learning (further "
        "security analysis), USENIX Security 2025"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"public", "defense"})
    min_public_images: ClassVar[int] = 16

    start: Start = "near"
    """Where the descent starts: "near" the upload, at a "random" gradient of its length, or at "zero"."""
    factor: float = 1.0
    """The distance to solve for, in units of the mean distance of simulated uploads, which is weighted and
    squared."""
    images: int = 256
    """Public images whose simulated uploads tell the distance; as many as there are, if fewer."""
    steps: int = 200
    """Steps of the descent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.choice("start", self.start, get_args(Start))
        checks.number("factor", self.factor, 0, 1e6)
        checks.integer("images", self.images, self.min_public_images)
        checks.integer("steps", self.steps, 1)

    def check(self, task: Task) -> None:
        """Raise if the other attack can't be run on `task`, or reads several uploads.

        Args:
            task: The model and its loss.

        Raises:
            DataError: The other attack sends several models: its uploads have no common distance.
        """
        super().check(task)
        if self.attack.rounds > 1:
            raise DataError(field="attack", value=self.name, expected="adaptive after an attack of one round")

    def least_public_images(self, samples: int) -> int:
        """Return what both can learn from: for the distance one batch, or more."""
        return max(super().least_public_images(samples), samples)

    def stage_uploads(self, public: int, samples: int) -> int:
        """Return how many uploads tell the distance."""
        return max(1, min(self.images, public) // samples)

    def run(
        self, observations: list[Observation], threat: ThreatModel, options: RunOptions
    ) -> Reconstruction:
        """Move every upload to the expected distance, and run the other attack.

        Args:
            observations: One or more uploads of the same victims.
            threat: The capabilities granted.
            options: Seed, chunk, state file, progress, and the simulator.

        Returns:
            The other attack's reconstruction.
        """
        began = time.perf_counter()
        simulator = options.simulator
        assert simulator is not None
        generator = torch.Generator().manual_seed(derive_seed(options.seed, "adaptive", "start"))
        moved = []
        for observation in observations:
            distance = self.factor * self._expected_distance(observation, simulator, options.seed)
            moved.append(replace(observation, gradient=self._solved(observation, distance, generator)))
        learns = self.attack.learns_from_public_images(observations[0].task)
        inner = replace(options, simulator=simulator if learns else None)
        result = self.attack.run(moved, threat, inner)
        return replace(result, seconds=time.perf_counter() - began)

    def _expected_distance(self, observation: Observation, simulator: Simulator, seed: int) -> float:
        """The mean of ‖g* − g‖² / ‖g*‖², weighted, over uploads of public images."""
        batches = self.stage_uploads(len(simulator.images), observation.samples)
        rows = torch.arange(batches * observation.samples).view(batches, -1)
        x, y = simulator.images[rows], simulator.labels[rows]
        uploads = simulator.protect(x, y, derive_seed(seed, "adaptive", "noise")).gradients[0]
        real = flatten(gradients(observation.task, x.to(uploads), y.to(uploads.device)))
        weights = _utility_weights(observation, uploads)
        distance = (weights * (uploads - real).square()).sum(1) / (weights * uploads.square()).sum(1)
        return float(distance.nanmean())

    def _solved(self, observation: Observation, distance: float, generator: torch.Generator) -> Tensor:
        """Gradients `[V, N]` at the expected distance of the uploads, by gradient descent."""
        upload = observation.gradient
        weights = _utility_weights(observation, upload)
        noise = torch.randn(upload.shape, generator=generator).to(upload)
        noise = noise * upload.norm(dim=1, keepdim=True) / noise.norm(dim=1, keepdim=True)
        starts = {"near": upload + 0.01 * noise, "random": noise, "zero": torch.zeros_like(upload)}
        found: Tensor = starts[self.start]
        wanted = distance * (weights * upload.square()).sum(1, keepdim=True)
        for _ in range(self.steps):
            offset = found - upload
            now = (weights * offset.square()).sum(1, keepdim=True)
            # Along the gradient 4 (now − wanted) w ⊙ offset; its length is that of Newton's method.
            direction = weights * offset
            curvature = (weights * direction * offset).sum(1, keepdim=True).clamp_min(1e-30)
            found = found - 0.5 * ((now - wanted) / (2 * curvature)).clamp(-1e3, 1e3) * direction
        return found


def _utility_weights(observation: Observation, gradient: Tensor) -> Tensor:
    """The weights |g θ| `[V, N]` of Refiner's utility metric, with the upload for g, of mean 1."""
    parameters = torch.cat([value.flatten() for value in observation.parameters.values()])
    weights: Tensor = (gradient * parameters).abs()
    return weights / weights.mean(1, keepdim=True).clamp_min(1e-30)
