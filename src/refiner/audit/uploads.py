"""What a defence lets out of many victims, as a server sees it."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Observation
from refiner.core.task import Task
from refiner.defenses import Defense, Refiner

# Samples that are defended at a time.
_SAMPLES = 256


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
    """Refiner's robust data, and the uploads of victims `x [V, B, …]`, with their labels if granted.

    >>> from refiner.defenses import NoDefense
    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(3, 1, 3, 32, 32), torch.zeros(3, 1, dtype=torch.long)
    >>> task = Task(LeNet(), example=x[0])
    >>> uploads(task, NoDefense(), x, y, labels=False, seed=0, chunk=2)[1].victims
    3
    """
    step = max(1, _SAMPLES // x.shape[1]) if chunk is None else checks.integer("chunk", chunk, 1)
    robust, parts = [], []
    for begin in range(0, len(x), step):
        on_progress(begin, len(x))
        rows = slice(begin, begin + step)
        if isinstance(defense, Refiner):
            images, update = defense.refine(task, x[rows], y[rows], seed=seed)
            robust.append(images)
        else:
            update = defense.protect(task, x[rows], y[rows], seed=seed, first=begin)
        parts.append(Observation.of(task, update, labels=y[rows] if labels else None))
    on_progress(len(x), len(x))
    gradient = torch.cat([part.gradient for part in parts])
    seen = replace(parts[0], gradient=gradient, labels=y if labels else None)
    return (torch.cat(robust) if robust else None), seen
