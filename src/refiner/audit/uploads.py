"""The uploads of many victims under one defence, as the server observes them."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Observation
from refiner.core.task import Task
from refiner.defenses import Defense

# Number of samples that are protected at a time.
_SAMPLES_PER_CALL = 256


def uploads(
    task: Task,
    defense: Defense,
    x: Tensor,
    y: Tensor,
    *,
    labels: bool,
    seed: int,
    chunk: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Tensor | None, Observation]:
    """The robust data of all victims, None if the defence crafts none, and what the server observes.

    Args:
        task: The model and its loss.
        defense: The defence of every victim.
        x: Inputs `[V, B, *input]`.
        y: Labels `[V, B]`.
        labels: Whether the observation includes the labels.
        seed: The seed of the defence's noise.
        chunk: Number of victims protected at a time; None chooses it.
        on_progress: Called with the number of victims done and their total.

    >>> from refiner.defenses import NoDefense
    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(3, 1, 3, 32, 32), torch.zeros(3, 1, dtype=torch.long)
    >>> task = Task(LeNet(), example=x[0])
    >>> uploads(task, NoDefense(), x, y, labels=False, seed=0, chunk=2)[1].victims
    3
    """
    step = max(1, _SAMPLES_PER_CALL // x.shape[1]) if chunk is None else checks.integer("chunk", chunk, 1)
    robust, observations = [], []
    for first in range(0, len(x), step):
        on_progress(first, len(x))
        rows = slice(first, first + step)
        protection = defense.protection(task, x[rows], y[rows], seed=seed, first_victim=first)
        if protection.robust is not None:
            robust.append(protection.robust)
        observations.append(Observation.of(task, protection.update, labels=y[rows] if labels else None))
    on_progress(len(x), len(x))
    gradient = torch.cat([observation.gradient for observation in observations])
    observation = replace(observations[0], gradient=gradient, labels=y if labels else None)
    return (torch.cat(robust) if robust else None), observation
