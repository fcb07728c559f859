"""Likelihood match of candidates with uploads, given the noise of the defence and the rest of the batch."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Capability, Observation, Simulator
from refiner.attacks.learning.simulated_batches import derive_seed, draw_batches, simulate
from refiner.attacks.learning.upload_statistics import Statistic, upload_statistics
from refiner.inference.candidate_gradients import (
    relative_to_class,
    sample_gradients,
    with_candidate_classes,
)
from refiner.inference.membership import Candidates, MembershipAttack, RunFacts
from refiner.metrics.likelihood import GaussianNoise

# Candidates whose numbers are kept at a time.
_CANDIDATES_AT_ONCE = 1024
# Values of gradients that are kept at a time, and of those that show the directions.
_VALUES_AT_ONCE, _DIRECTION_VALUES = 2**26, 2**29


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
    """The most numbers that uploads of one sample are compared by, where they reveal inputs of layers."""

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
        simulator.check(task, samples, self.name, samples)
        passes: list[Tensor] = []
        while sum(len(batches) for batches in passes) < self.clients:
            passes += draw_batches(numbers, samples, 1, generator)[:1]
        firsts = torch.cat([batches[:, 0] for batches in passes])
        used = torch.unique(firsts)
        place = torch.searchsorted(used, firsts)
        public = with_candidate_classes(
            *_rows(simulator, used), candidates.y, derive_seed(facts.seed, self.name, "labels")
        )
        directions = min(self.directions, sum(map(len, passes)) - 1)
        rounds = [
            _Round(each, public, directions, self._statistic(each, public), facts) for each in observations
        ]
        noise = derive_seed(facts.seed, self.name, "noise")
        for rows, found in simulate(simulator, passes, noise, task.size * len(observations)):
            for each, upload in zip(rounds, found.gradients, strict=False):
                each.add(upload, place[rows])
        return torch.stack([each.scores(candidates) for each in rounds]).mean(0)

    def _statistic(self, observation: Observation, public: tuple[Tensor, Tensor]) -> Statistic:
        """The inputs of layers that an upload of one sample reveals; otherwise the upload itself."""
        if observation.samples > 1:
            return lambda upload: upload
        few = max(2, min(256, _VALUES_AT_ONCE // observation.task.size))
        images, labels = public
        some = torch.cat([own for _, own in sample_gradients(observation, images[:few], labels[:few])])
        _, *inputs = upload_statistics(observation.task, some, self.numbers, seed=0)
        return inputs[0] if inputs else lambda upload: upload


class _Round:
    """What the defence and the rest of a batch add to the share of one sample in the uploads of a round.

    Args:
        observation: The clients' uploads.
        public: Public images and labels.
        directions: The most directions of public gradients whose covariance is estimated.
        statistic: What uploads are compared by.
        facts: The local steps of a client, and the seed.
    """

    def __init__(
        self,
        observation: Observation,
        public: tuple[Tensor, Tensor],
        directions: int,
        statistic: Statistic,
        facts: RunFacts,
    ) -> None:
        self._observation, self._statistic, self._public = observation, statistic, public
        self._share = facts.steps / observation.samples
        self._observed = statistic(observation.gradient)
        # Small uploads are compared in double precision; of large ones as many show the directions as fit.
        self._dtype = (
            torch.float64 if len(public[1]) * observation.task.size <= _VALUES_AT_ONCE else torch.float32
        )
        generator = torch.Generator().manual_seed(derive_seed(facts.seed, "likelihood", "directions"))
        fitting = max(2, _DIRECTION_VALUES // observation.task.size)
        some = torch.randperm(len(public[1]), generator=generator)[:fitting]
        shown = self._predicted(*(part[some.to(part.device)] for part in public))
        self._noise = GaussianNoise(shown, directions, remainder=True)

    def add(self, uploads: Tensor, firsts: Tensor) -> None:
        """Count what simulated uploads `[n, N]` have besides the share of one public image of each."""
        seen = self._statistic(uploads.to(self._observation.gradient)).to(self._dtype)
        self._noise.add(seen - self._predicted(*(part[firsts.to(part.device)] for part in self._public)))

    def scores(self, candidates: Candidates) -> Tensor:
        """Return the relative log-likelihoods `[V, K]` of candidates."""
        observed = self._observed.to(self._dtype)
        found, others = [], []
        at_once = max(1, min(_CANDIDATES_AT_ONCE, _VALUES_AT_ONCE // self._observation.task.size))
        for rows in torch.split(torch.arange(len(observed)), max(1, at_once // candidates.y.shape[1])):
            x, y = candidates.x[rows], candidates.y[rows]
            own = self._predicted(x.flatten(0, 1), y.flatten()).view(*y.shape, -1)
            found.append(self._noise.log_likelihoods(observed[rows], own))
        images, labels = self._public
        for rows in torch.split(torch.arange(len(labels)), at_once):
            others.append(self._noise.log_likelihoods(observed, self._predicted(images[rows], labels[rows])))
        return relative_to_class(torch.cat(found), candidates.y, torch.cat(others, dim=1), labels)

    def _predicted(self, x: Tensor, y: Tensor) -> Tensor:
        """The share of single samples in an upload, `[S, D]`."""
        parts = [self._statistic(own).to(self._dtype) for _, own in sample_gradients(self._observation, x, y)]
        return self._share * torch.cat(parts)


def _rows(simulator: Simulator, numbers: Tensor) -> tuple[Tensor, Tensor]:
    images, labels = simulator.images, simulator.labels
    return images[numbers.to(images.device)], labels[numbers.to(labels.device)]
