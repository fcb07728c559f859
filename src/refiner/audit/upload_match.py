"""Likelihood match of uploads: which of several known images was protected?"""

import torch
from torch import Tensor

from refiner.attacks import Observation, Simulator
from refiner.attacks.learning.simulated_batches import derive_seed, simulate
from refiner.attacks.learning.upload_statistics import upload_statistics
from refiner.core.gradients import flatten, gradients
from refiner.core.task import Task
from refiner.metrics import identify_by_likelihood

# The most candidates, clients whose uploads show the noise, uploads of each, and numbers that are compared.
_CANDIDATES, _NOISY_CLIENTS, _DRAWS, _NUMBERS = 1000, 600, 4, 4096
_CLIENTS_AT_ONCE = 256


def match_uploads(
    simulator: Simulator, observation: Observation, x: Tensor, y: Tensor, *, seed: int = 0
) -> float:
    """Return how often the likelihood of an upload is highest for its own image among known candidates.

    The attacker has the candidates and compares the victim's upload with the undefended gradient of each, in
    the covariance of what the defence adds to the gradients of other images. Compared are the inputs of
    linear layers that uploads reveal, and whole uploads, projected; the one that finds more counts.

    Args:
        simulator: Public images, and the defence.
        observation: The victims' uploads, of one image each.
        x: The victims' images `[V, 1, C, H, W]`, which are among the candidates.
        y: Their labels `[V, 1]`.
        seed: Seed of the attacker's draws.

    Returns:
        The share of victims; by chance 1 / candidates.
    """
    task = observation.task
    generator = torch.Generator().manual_seed(derive_seed(seed, "likelihood", "images"))
    shuffled = torch.randperm(len(simulator.images), generator=generator)
    # No more than half of the public images become candidates, so that the others show the noise.
    extra = shuffled[: min(max(0, _CANDIDATES - len(x)), len(shuffled) // 2), None]
    rest = shuffled[len(extra) :][:_NOISY_CLIENTS, None]

    def public(numbers: Tensor) -> tuple[Tensor, Tensor]:
        images, labels = simulator.images, simulator.labels
        return images[numbers.to(images.device)].to(x), labels[numbers.to(labels.device)].to(y)

    undefended = _gradients(task, *public(rest))
    candidates = _gradients(task, *(torch.cat(pair) for pair in zip((x, y), public(extra), strict=True)))
    statistics = upload_statistics(task, undefended, _NUMBERS, derive_seed(seed, "likelihood", "projection"))
    expected = [statistic(undefended) for statistic in statistics]
    residuals: list[list[Tensor]] = [[] for _ in statistics]
    passes = [rest] * _DRAWS
    for rows, uploads in simulate(simulator, passes, derive_seed(seed, "likelihood", "noise"), task.size):
        first = rows.start % len(rest)
        clients = slice(first, first + rows.stop - rows.start)
        for statistic, mean, found in zip(statistics, expected, residuals, strict=True):
            found.append(statistic(uploads.gradients[0]) - mean[clients])
    return max(
        identify_by_likelihood(statistic(observation.gradient), statistic(candidates), torch.cat(found)).top1
        for statistic, found in zip(statistics, residuals, strict=True)
    )


def _gradients(task: Task, x: Tensor, y: Tensor) -> Tensor:
    """The undefended gradients `[V, N]` of clients with one image each."""
    return flatten(gradients(task, x, y, chunk=_CLIENTS_AT_ONCE))
