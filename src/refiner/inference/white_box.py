"""A network that learns membership from what the gradients, losses and uploads of several rounds show."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn

from refiner import checks
from refiner.attacks import Capability, Observation, Simulator
from refiner.attacks.learning.simulated_batches import derive_seed
from refiner.errors import DataError
from refiner.inference.candidate_gradients import (
    candidate_products,
    public_products,
    relative_to_class,
    with_candidate_classes,
)
from refiner.inference.client_models import answers, client_models, sent_parameters
from refiner.inference.label_pairs import pair_by_label
from refiner.inference.membership import Candidates, MembershipAttack, RunFacts

# The share of public images that candidates are compared with; the others are those of simulated clients.
_COMPARED = 1 / 3
# Clients whose uploads are simulated at a time, and those that training is stopped by.
_CLIENTS_AT_ONCE, _HELD_OUT = 64, 0.2
# Features beyond so many standard deviations are outliers, and the network has seen none of them.
_LARGEST = 6.0
_STEPS, _LR, _WEIGHT_DECAY, _PATIENCE = 400, 5e-3, 1e-2, 30


@dataclass(frozen=True)
class WhiteBox(MembershipAttack):
    """Scores a candidate with a network that was trained on simulated clients.

    Its inputs, from every round: how well the candidate's gradient is aligned with the upload, as a whole
    and in each layer, relative to public images of the same class; the norm of that gradient; the loss,
    confidence and correctness before the client's training, and how the first two change by it. The
    network learns from simulated clients with public images and the defence, each with as many members as
    non-members of the same labels, and keeps the weights that are best for clients it does not learn
    from.

    Raises:
        SettingError: A setting is out of its range.
    """

    name: ClassVar[str] = "white-box"
    reference: ClassVar[str] = (
        "Nasr, Shokri, Houmansadr: Comprehensive privacy analysis of deep learning: passive and active "
        "white-box inference attacks against centralized and federated learning. IEEE S&P 2019"
    )
    needs: ClassVar[frozenset[Capability]] = frozenset({"public", "defense"})

    clients: int = 200
    """Simulated clients that the network learns from."""
    hidden: int = 64
    """Units in each of its two hidden layers."""

    def __post_init__(self) -> None:
        checks.integer("clients", self.clients, 10)
        checks.integer("hidden", self.hidden, 1)

    def run(
        self,
        observations: list[Observation],
        candidates: Candidates,
        simulator: Simulator | None,
        facts: RunFacts,
    ) -> Tensor:
        """Return the network's logits."""
        assert simulator is not None
        samples = observations[0].samples
        seed = derive_seed(facts.seed, self.name, "images")
        order = torch.randperm(len(simulator.images), generator=torch.Generator().manual_seed(seed))
        compared, own = order[: round(_COMPARED * len(order))], order[round(_COMPARED * len(order)) :]
        public = with_candidate_classes(
            *_rows(simulator, compared),
            torch.cat([candidates.y.flatten().cpu(), simulator.labels.cpu()]),
            seed,
        )
        inputs, truth, done = [], [], 0
        while done < self.clients:
            count = min(_CLIENTS_AT_ONCE, self.clients - done)
            number = derive_seed(facts.seed, self.name, "pass", done)
            simulated, uploads = self._simulate(simulator, own, samples, count, number)
            seen = [
                replace(observation, gradient=upload.to(observation.gradient))
                for observation, upload in zip(observations, uploads, strict=False)
            ]
            inputs.append(_features(seen, simulated, public, facts.lr))
            truth.append(torch.arange(2 * samples).expand(len(simulated.y), -1) < samples)
            done += len(simulated.y)
        learned = torch.cat(inputs)
        seed = derive_seed(facts.seed, self.name, "network")
        network = _train(learned, torch.cat(truth).to(learned), self.hidden, seed)
        with torch.no_grad():
            scores: Tensor = network(_features(observations, candidates, public, facts.lr))[..., 0]
        return scores

    def _simulate(
        self, simulator: Simulator, numbers: Tensor, samples: int, most: int, seed: int
    ) -> tuple[Candidates, list[Tensor]]:
        """At most so many clients with their candidates, members first, and their uploads in each round."""
        images, labels = _rows(simulator, numbers)
        pairs = sum(int(count) // 2 for count in torch.bincount(labels))
        clients = min(most, pairs // samples)
        if clients < 1:
            expected = f"more: {pairs} pairs of one class, expected {samples}, the members of a client"
            raise DataError(field="public", value=len(simulator.images), expected=expected)
        members, others, own = pair_by_label(images, labels, clients, samples, seed=seed)
        uploads = simulator.protect(members, own, seed).gradients
        return Candidates(torch.cat([members, others], 1), torch.cat([own, own], 1)), list(uploads)


def _rows(simulator: Simulator, numbers: Tensor) -> tuple[Tensor, Tensor]:
    images, labels = simulator.images, simulator.labels
    return images[numbers.to(images.device)], labels[numbers.to(labels.device)]


def _features(
    observations: list[Observation], candidates: Candidates, public: tuple[Tensor, Tensor], lr: float
) -> Tensor:
    """What the network is given of each candidate, `[V, K, F]`."""
    found = []
    for observation in observations:
        own, others = candidate_products(observation, candidates), public_products(observation, *public)
        cosines, public_cosines = (
            torch.cat([products.cosines[..., None], products.layer_cosines], 2) for products in (own, others)
        )
        sent = sent_parameters(observation).expand(observation.victims, -1)
        before = answers(observation.task, sent, *candidates)
        after = answers(observation.task, client_models(observation, lr), *candidates)
        rest = (
            own.squares.sum(-1).clamp_min(1e-30).log(),
            before.loss,
            before.confidence,
            before.correct,
            after.loss - before.loss,
            after.confidence - before.confidence,
        )
        relative = relative_to_class(cosines, candidates.y, public_cosines, public[1])
        found.append(torch.cat([relative, torch.stack(rest, 2).to(relative)], 2))
    return torch.cat(found, 2).float()


def _train(inputs: Tensor, truth: Tensor, hidden: int, seed: int) -> nn.Module:
    """The network with the weights that are best on held-out clients, for inputs `[V, K, F]`."""
    flat = inputs.flatten(0, 1)
    width = flat.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        body = nn.Sequential(
            nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
    network = nn.Sequential(_Standardize(flat.mean(0), flat.std(0)), body).to(inputs.device)
    held_out = max(1, round(_HELD_OUT * len(inputs)))
    optimizer = torch.optim.AdamW(network.parameters(), lr=_LR, weight_decay=_WEIGHT_DECAY)
    best, best_loss, best_step = network.state_dict(), torch.inf, 0
    for step in range(_STEPS):
        with torch.enable_grad():
            loss = _loss(network, inputs[held_out:], truth[held_out:])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
        with torch.no_grad():
            held_out_loss = float(_loss(network, inputs[:held_out], truth[:held_out]))
        if held_out_loss < best_loss:
            best_loss, best_step = held_out_loss, step
            best = {name: value.clone() for name, value in network.state_dict().items()}
        elif step - best_step > _PATIENCE:
            break
    network.load_state_dict(best)
    return network


def _loss(network: nn.Module, inputs: Tensor, truth: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(network(inputs)[..., 0], truth)


class _Standardize(nn.Module):
    """Features in standard deviations from their mean, without outliers."""

    mean: Tensor
    spread: Tensor

    def __init__(self, mean: Tensor, spread: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("spread", spread.clamp_min(1e-12))

    def forward(self, features: Tensor) -> Tensor:
        return ((features - self.mean) / self.spread).clamp(-_LARGEST, _LARGEST)
