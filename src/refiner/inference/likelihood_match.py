"""Likelihood match of candidates with uploads, given the noise of the defence and the rest of the batch."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Capability, Observation, Simulator
from refiner.attacks.learning.simulated_batches import derive_seed, draw_batches, simulate
from refiner.attacks.learning.upload_statistics import upload_statistics
from refiner.inference.candidate_gradients import (
    relative_to_class,
    sample_gradients,
    with_candidate_classes,
)
from refiner.inference.membership import Candidates, MembershipAttack, RunFacts
from refiner.metrics.likelihood import GaussianNoise

# Candidates whose numbers are kept at a time.
_CANDIDATES_AT_ONCE = 1024
# Values of the gradients that show how long inputs of layers are.
_VALUES_AT_ONCE = 2**26


@dataclass(frozen=True)
class LikelihoodMatch(MembershipAttack):
    """Scores a candidate by the likelihood of the upload if the client has it.

    The upload of a batch of B samples is a B-th of the candidate's undefended gradient, once for every local
    step, plus what the other samples and the defence add. Mean and covariance of that come from simulated
    clients with public images, each less the share of one of its samples. For a batch of one sample it is
    the noise of the defence alone: the metric in which Refiner's noise is smallest. Log-likelihoods count
    relative to those of public images of the same class, in standard deviations; of several rounds, their
    mean.

    Raises:
        SettingError: A setting is out of its range.
    """

    name: ClassVar[str] = "likelihood"
    reference: ClassVar[str] = (
        "Leemann, Pawelczyk, Kasneci: Gaussian membership inference privacy. NeurIPS 2023"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"public", "defense"})

    clients: int = 600
    """Simulated clients whose uploads show the noise."""
    directions: int = 400
    """The most directions of public gradients whose covariance is estimated; all others share a variance."""
    numbers: int = 16384
    """The most numbers that an upload is projected to."""

    def __post_init__(self) -> None:
        checks.integer("clients", self.clients, 2)
        checks.integer("directions", self.directions, 1)
        checks.integer("numbers", self.numbers, 1)

    def run(
        self,
        observations: list[Observation],
        candidates: Candidates,
        simulator: Simulator | None,
        facts: RunFacts,
    ) -> Tensor:
        """Return the mean log-likelihood over rounds."""
        assert simulator is not None
        samples, task = observations[0].samples, observations[0].task
        generator = torch.Generator().manual_seed(derive_seed(facts.seed, self.name, "images"))
        numbers = torch.arange(len(simulator.images))
        simulator.check(task, samples, f"{self.name} for batches of {samples}")
        passes: list[Tensor] = []
        while sum(len(batches) for batches in passes) < self.clients:
            passes += draw_batches(numbers, samples, 1, generator)[:1]
        firsts = torch.cat([batches[:, 0] for batches in passes])
        used = torch.unique(firsts)
        place = torch.searchsorted(used, firsts)
        public = with_candidate_classes(
            *_rows(simulator, used), candidates.y, derive_seed(facts.seed, self.name, "labels")
        )
        seed = derive_seed(facts.seed, self.name, "projection")
        rounds = [
            _Round(observation, public, self.numbers, seed, facts.steps) for observation in observations
        ]
        noise = derive_seed(facts.seed, self.name, "noise")
        # Residuals are kept instead of uploads, which may be large.
        for rows, found in simulate(simulator, passes, noise, task.size * len(observations)):
            for each, upload in zip(rounds, found.gradients, strict=False):
                each.add(upload, place[rows])
        return torch.stack([each.scores(candidates, self.directions) for each in rounds]).mean(0)


class _Round:
    """What uploads of one round are compared by, and what the defence and the rest of a batch add to it.

    Args:
        observation: The clients' uploads.
        public: Public images and labels.
        numbers: The most numbers that an upload is projected to.
        seed: Seed of the projection.
        steps: Local steps of a client.
    """

    def __init__(
        self, observation: Observation, public: tuple[Tensor, Tensor], numbers: int, seed: int, steps: int
    ) -> None:
        images, labels = public
        few = max(2, min(256, _VALUES_AT_ONCE // observation.task.size))
        some = torch.cat([own for _, own in sample_gradients(observation, images[:few], labels[:few])])
        statistics = upload_statistics(observation.task, some, numbers, seed)
        # Of several samples the inputs of a layer are mixed; only the projection, which is linear, adds up.
        self._statistic = statistics[-1 if observation.samples == 1 else 0]
        self._observation, self._labels = observation, labels
        self._share = steps / observation.samples
        self._public = self._predicted(images, labels)
        self._residuals: list[Tensor] = []

    def add(self, uploads: Tensor, firsts: Tensor) -> None:
        """Keep what simulated uploads `[n, N]` have besides the share of one public image of each."""
        seen = self._statistic(uploads.to(self._observation.gradient)).double()
        self._residuals.append(seen - self._public[firsts.to(seen.device)])

    def scores(self, candidates: Candidates, directions: int) -> Tensor:
        """Return the relative log-likelihoods `[V, K]` of candidates."""
        noise = GaussianNoise(self._public, torch.cat(self._residuals), directions, remainder=True)
        observed = self._statistic(self._observation.gradient).double()
        found = []
        chunk = max(1, _CANDIDATES_AT_ONCE // candidates.y.shape[1])
        for first in range(0, len(observed), chunk):
            rows = slice(first, first + chunk)
            x, y = candidates.x[rows], candidates.y[rows]
            own = self._predicted(x.flatten(0, 1), y.flatten())
            found.append(noise.log_likelihoods(observed[rows], own.view(*y.shape, -1)))
        others = noise.log_likelihoods(observed, self._public)
        return relative_to_class(torch.cat(found), candidates.y, others, self._labels)

    def _predicted(self, x: Tensor, y: Tensor) -> Tensor:
        """The share of single samples in an upload, `[S, D]` in float64."""
        parts = [self._statistic(own).double() for _, own in sample_gradients(self._observation, x, y)]
        return self._share * torch.cat(parts)


def _rows(simulator: Simulator, numbers: Tensor) -> tuple[Tensor, Tensor]:
    images, labels = simulator.images, simulator.labels
    return images[numbers.to(images.device)], labels[numbers.to(labels.device)]
