"""LiRA: the likelihood ratio of a candidate's confidence, from shadow models with and without it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Capability, Observation, Simulator
from refiner.attacks.learning.simulated_batches import derive_seed
from refiner.core.task import Task
from refiner.errors import DataError
from refiner.inference.client_models import answers, sent_parameters
from refiner.inference.membership import Candidates, MembershipAttack, RunFacts

# Samples of shadow clients that are trained at a time.
_SAMPLES_AT_ONCE = 4096
# Values of their models, or of the inputs that these answer for, at a time.
_VALUES_AT_ONCE = 2**27
_LEAST_VARIANCE = 1e-12


@dataclass(frozen=True)
class LiRA(MembershipAttack):
    """Scores a candidate by how likely its confidence is if the client has it, and if not.

    Shadow models are those of simulated clients that train as the real ones do, with the same defence,
    many at a time: each has its own parameters along the axis of victims. Online, a client's shadows
    train on random halves of its candidates, so that half of them contain each candidate. Offline, they
    train on public images only, and serve all clients: what a candidate's confidence is without it is
    known, and a higher one speaks for a member. Confidence is the logit of the true class's probability;
    its variance is that of all candidates of a client together, as the paper advises for few shadows. Of
    several rounds the sum counts.

    Raises:
        SettingError: A setting is out of its range.
    """

    name: ClassVar[str] = "lira"
    reference: ClassVar[str] = (
        "Carlini, Chien, Nasr, Song, Terzis, Tramèr: Membership inference attacks from first principles. "
        "IEEE S&P 2022"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"defense"})

    shadows: int = 32
    """Shadow models: for each client online, for all clients offline."""
    online: bool = True
    """Whether shadows train on the candidates; otherwise on public images."""

    def __post_init__(self) -> None:
        checks.integer("shadows", self.shadows, 4)
        checks.flag("online", self.online)

    def needs_for(self, task: Task) -> frozenset[Capability]:
        """Public images too if shadows train on them."""
        return self.needs if self.online else self.needs | {"public"}

    def run(
        self,
        observations: list[Observation],
        candidates: Candidates,
        simulator: Simulator | None,
        facts: RunFacts,
    ) -> Tensor:
        """Return the sum of log-likelihood ratios over rounds."""
        assert simulator is not None
        seen = torch.stack([_confidence(o, o.gradient, candidates, facts.lr) for o in observations])
        if self.online:
            return self._online(observations, candidates, simulator, facts, seen)
        return self._offline(observations, candidates, simulator, facts, seen)

    def _online(
        self,
        observations: list[Observation],
        candidates: Candidates,
        simulator: Simulator,
        facts: RunFacts,
        seen: Tensor,
    ) -> Tensor:
        samples, (clients, count) = observations[0].samples, candidates.y.shape
        half = count // 2
        if half < samples:
            expected = (
                f"at least {2 * samples} for each client, of which shadow models take {samples} at random"
            )
            raise DataError(field="candidates", value=count, expected=expected)
        generator = torch.Generator().manual_seed(derive_seed(facts.seed, self.name, "halves"))
        chosen = torch.stack([_halves(count, samples, self.shadows, generator) for _ in range(clients)])
        inside = torch.zeros(clients, self.shadows, count).scatter(2, chosen, 1.0).bool().to(seen.device)
        values = self.shadows * max(observations[0].task.size, candidates.x[0].numel())
        chunk = max(1, min(_SAMPLES_AT_ONCE // (self.shadows * samples), _VALUES_AT_ONCE // values))
        total = seen.new_zeros(candidates.y.shape)
        for rows in _slices(clients, chunk):
            uploads = self._online_uploads(simulator, candidates, chosen, rows, facts.seed)
            # Every shadow of a client answers for all of its candidates.
            own = Candidates(*(part[rows].repeat_interleave(self.shadows, 0) for part in candidates))
            for number, observation in enumerate(observations):
                found = _confidence(observation, uploads[number], own, facts.lr)
                found = found.view(-1, self.shadows, count)
                total[rows] += _log_ratio(seen[number, rows], found, inside[rows])
        return total

    def _online_uploads(
        self, simulator: Simulator, candidates: Candidates, chosen: Tensor, rows: slice, seed: int
    ) -> list[Tensor]:
        """The uploads `[V × shadows, N]` of the shadows of some clients, in each round.

        A secret gives a candidate the same noise wherever it is. So only shadows that share no candidate,
        two in turn, have the same.
        """
        pairs = []
        for first in range(0, self.shadows, 2):
            own = chosen[rows, first : first + 2]
            x, y = (_taken(part[rows], own) for part in candidates)
            found = _shadow_uploads(simulator, x, y, derive_seed(seed, "pair", first), rows.start)
            pairs.append([upload.view(*own.shape[:2], -1) for upload in found])
        return [torch.cat(parts, 1).flatten(0, 1) for parts in zip(*pairs, strict=True)]

    def _offline(
        self,
        observations: list[Observation],
        candidates: Candidates,
        simulator: Simulator,
        facts: RunFacts,
        seen: Tensor,
    ) -> Tensor:
        samples = observations[0].samples
        simulator.check(observations[0].task, samples, self.name, samples)
        generator = torch.Generator().manual_seed(derive_seed(facts.seed, self.name, "batches"))
        batches = torch.stack(
            [
                torch.randperm(len(simulator.images), generator=generator)[:samples]
                for _ in range(self.shadows)
            ]
        )
        x = simulator.images[batches.to(simulator.images.device)]
        y = simulator.labels[batches.to(simulator.labels.device)]
        shared = Candidates(
            candidates.x.flatten(0, 1).expand(self.shadows, -1, *candidates.x.shape[2:]),
            candidates.y.flatten().expand(self.shadows, -1),
        )
        total = seen.new_zeros(candidates.y.shape)
        uploads = _shadow_uploads(simulator, x, y, facts.seed, 0)
        for number, observation in enumerate(observations):
            found = _confidence(observation, uploads[number], shared, facts.lr)
            mean = found.mean(0).view_as(candidates.y)
            variance = found.var(0).mean().clamp_min(_LEAST_VARIANCE)
            total += (seen[number] - mean) / variance.sqrt()
        return total


def _halves(count: int, samples: int, shadows: int, generator: torch.Generator) -> Tensor:
    """Which candidates each shadow trains on, `[shadows, samples]`; two in turn share none."""
    orders = [torch.randperm(count, generator=generator) for _ in range((shadows + 1) // 2)]
    pairs = [part for order in orders for part in (order[:samples], order[-samples:])]
    return torch.stack(pairs[:shadows])


def _shadow_uploads(simulator: Simulator, x: Tensor, y: Tensor, seed: int, client: int) -> list[Tensor]:
    """The uploads `[S, N]` of shadow clients in each round, a chunk of clients at a time."""
    chunk = max(1, _SAMPLES_AT_ONCE // x.shape[1])
    parts = [
        simulator.protect(x[rows], y[rows], derive_seed(seed, "shadows", client, rows.start)).gradients
        for rows in _slices(len(x), chunk)
    ]
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def _slices(count: int, chunk: int) -> Iterator[slice]:
    return (slice(first, min(first + chunk, count)) for first in range(0, count, chunk))


def _confidence(observation: Observation, uploads: Tensor, candidates: Candidates, lr: float) -> Tensor:
    """The confidence of clients' models in the true classes of their candidates, `[V, K]` in float64."""
    models = sent_parameters(observation) - lr * uploads.to(observation.gradient)
    return answers(observation.task, models, *candidates).confidence.double()


def _log_ratio(seen: Tensor, found: Tensor, inside: Tensor) -> Tensor:
    """The log-likelihood ratios `[V, K]` of confidences, given those of shadows `[V, S, K]` in and out.

    Means are those of each candidate, variances those of all candidates of a client.
    """
    terms = []
    for group in (inside, ~inside):
        count = group.sum(1)
        mean = (found * group).sum(1) / count.clamp_min(1)
        squares = ((found - mean[:, None]).square() * group).sum((1, 2))
        variance = (squares / (count - 1).clamp_min(0).sum(1).clamp_min(1)).clamp_min(_LEAST_VARIANCE)[
            :, None
        ]
        terms.append(-(seen - mean).square() / (2 * variance) - variance.log() / 2)
    return terms[0] - terms[1]


def _taken(values: Tensor, chosen: Tensor) -> Tensor:
    """The chosen ones `[V · S, B, …]` of values `[V, K, …]`, for numbers `[V, S, B]`."""
    clients = torch.arange(len(values), device=values.device)[:, None, None]
    return values[clients, chosen.to(values.device)].flatten(0, 1)
