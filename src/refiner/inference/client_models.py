"""Clients' models after their training, and what they say about samples."""

from typing import NamedTuple

import torch
from torch import Tensor

from refiner.attacks import Observation
from refiner.core.task import Task

# Parameters of clients' models, and values of their inputs, that are used at a time.
_VALUES_AT_ONCE = 2**25


class Answers(NamedTuple):
    """What each client's model says about its candidates."""

    loss: Tensor
    """`[V, K]`"""
    confidence: Tensor
    """The logit of the probability of the true class, log p − log (1 − p), `[V, K]`."""
    correct: Tensor
    """1 where the true class has the highest score, otherwise 0, `[V, K]`."""


def client_models(observation: Observation, lr: float) -> Tensor:
    """Return the parameters `[V, N]` of clients' models after training: those sent less lr × upload.

    Args:
        observation: The uploads, with the parameters that were sent.
        lr: Learning rate of the clients.
    """
    return sent_parameters(observation) - lr * observation.gradient


def sent_parameters(observation: Observation) -> Tensor:
    """Return the parameters `[N]` that the server sent in the observed round.

    Args:
        observation: The uploads, with the parameters that were sent.
    """
    return torch.cat([value.flatten() for value in observation.parameters.values()])


def answers(task: Task, models: Tensor, x: Tensor, y: Tensor) -> Answers:
    """Return what models say about samples, each about its own.

    Args:
        task: The model and its loss.
        models: Parameters `[V, N]`.
        x: Samples `[V, K, *input]`.
        y: Labels `[V, K]`.

    >>> task = Task(torch.nn.Linear(2, 3), example=torch.rand(1, 2))
    >>> found = answers(task, torch.zeros(4, 9), torch.rand(4, 5, 2), torch.zeros(4, 5, dtype=torch.long))
    >>> found.loss.shape, found.confidence[0, 0].exp()
    (torch.Size([4, 5]), tensor(0.5000))
    """
    chunk = max(1, _VALUES_AT_ONCE // max(models.shape[1], x[0].numel()))
    parts = []
    with torch.no_grad():
        for first in range(0, len(models), chunk):
            rows = slice(first, first + chunk)
            own = x[rows].to(models), y[rows].to(models.device)
            scores = torch.func.vmap(task.scores)(task.unflatten(models[rows]), own[0])
            parts.append(_answers(task, scores.float(), own[1]))
    return Answers(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _answers(task: Task, scores: Tensor, y: Tensor) -> Answers:
    def loss(score: Tensor, label: Tensor) -> Tensor:
        return task.loss_of_scores(score[None], label[None])

    losses = torch.func.vmap(torch.func.vmap(loss))(scores, y)
    own = scores.gather(-1, y[..., None])
    # Without the own class, so that no probability is rounded to 1.
    others = scores.scatter(-1, y[..., None], -torch.inf).logsumexp(-1)
    correct = (scores.argmax(-1) == y).to(scores)
    return Answers(losses, own[..., 0] - others, correct)
