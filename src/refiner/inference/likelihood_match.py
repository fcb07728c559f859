"""Likelihood match of candidates with uploads, given the noise of the defence and the rest of the batch."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Capability, Observation, Simulator
from refiner.attacks.simulated_batches import derive_seed, draw_batches, simulate
from refiner.attacks.upload_statistics import Statistic, upload_statistics
from refiner.inference.candidate_gradients import relative_to_class, sample_gradients
from refiner.inference.membership import Candidates, MembershipAttack, RunFacts
from refiner.metrics.likelihood import GaussianNoise


@dataclass(frozen=True)
class LikelihoodMatch(MembershipAttack):
    """Scores a candidate by the likelihood of the upload if the client has it.

    The upload of a batch of B samples is a B-th of the candidate's undefended gradient, plus what the other
    samples and the defence add. Mean and covariance of that come from simulated clients with public images,
    each less the share of one of its samples. For a batch of one sample it is the noise of the defence alone:
    the metric in which Refiner's noise is smallest. Log-likelihoods count relative to those of public images
    of the same class, in standard deviations; of several rounds, their mean.

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
    """The most directions to compare in."""
    numbers: int = 4096
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
        seeds = derive_seed(facts.seed, self.name, "noise"), derive_seed(facts.seed, self.name, "projection")
        uploads = [
            [upload.cpu() for upload in found.gradients]
            for _, found in simulate(simulator, passes, seeds[0], task.size * len(observations))
        ]
        firsts = torch.cat([batches[:, 0] for batches in passes])
        rounds = []
        for number, observation in enumerate(observations):
            simulated = torch.cat([upload[number] for upload in uploads]).to(observation.gradient)
            rounds.append(self._one_round(observation, simulated, firsts, candidates, simulator, seeds[1]))
        return torch.stack(rounds).mean(0)

    def _one_round(
        self,
        observation: Observation,
        simulated: Tensor,
        firsts: Tensor,
        candidates: Candidates,
        simulator: Simulator,
        seed: int,
    ) -> Tensor:
        """The relative log-likelihoods `[V, K]` from one round; `firsts` are the first samples of clients."""
        images, labels = simulator.images, simulator.labels
        used = torch.unique(firsts)
        images, labels = images[used.to(images.device)], labels[used.to(labels.device)]
        some = torch.cat([own for _, own in sample_gradients(observation, images[:256], labels[:256])])
        statistics = upload_statistics(observation.task, some, self.numbers, seed)
        # Of several samples the inputs of a layer are mixed; only the projection, which is linear, adds up.
        statistic = statistics[-1 if observation.samples == 1 else 0]
        share = 1 / observation.samples
        public = _statistics(statistic, observation, images, labels)
        place = torch.searchsorted(used, firsts).to(public.device)
        residuals = statistic(simulated).double() - share * public[place]
        own = _statistics(statistic, observation, candidates.x.flatten(0, 1), candidates.y.flatten())
        predicted = share * torch.cat([public, own])
        noise = GaussianNoise(predicted, residuals, self.directions)
        observed = statistic(observation.gradient).double()
        scores = noise.log_likelihoods(observed, share * own.view(*candidates.y.shape, -1))
        others = noise.log_likelihoods(observed, share * public)
        return relative_to_class(scores, candidates.y, others, labels)


def _statistics(statistic: Statistic, observation: Observation, x: Tensor, y: Tensor) -> Tensor:
    """The statistics of the undefended gradients of single samples, in float64."""
    return torch.cat([statistic(own).double() for _, own in sample_gradients(observation, x, y)])
