"""The uploads of many victims under one defence, as the server observes them."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Observation, SimulatedUploads, Simulator
from refiner.audit.attacker_images import AttackerImages
from refiner.audit.seeds import SIMULATION
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
    step = victims_per_call(x.shape[1], chunk)
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


def victims_per_call(batch: int, chunk: int | None = None) -> int:
    """Return how many clients with batches of `batch` samples are protected at a time.

    >>> victims_per_call(16), victims_per_call(16, chunk=3)
    (16, 3)
    """
    return max(1, _SAMPLES_PER_CALL // batch) if chunk is None else checks.integer("chunk", chunk, 1)


def simulator(task: Task, defense: Defense, images: AttackerImages | None) -> Simulator | None:
    """Return the defence as an attacker runs it on public images; None if there are no images.

    All noise comes from seeds, also that of a defence that has a client's secret: the attacker never has it.
    The seeds are those of no victim, whichever the attack chooses.

    Args:
        task: The model and its loss.
        defense: The victims' defence.
        images: The attacker's images.

    >>> from refiner.defenses import NoDefense
    >>> from refiner.models import LeNet
    >>> images = AttackerImages(torch.rand(4, 3, 32, 32), torch.arange(4), "random")
    >>> task = Task(LeNet(), example=images.images)
    >>> simulate = simulator(task, NoDefense(), images)
    >>> simulate.protect(simulate.images[:2, None], simulate.labels[:2, None], 0).gradients[0].shape
    torch.Size([2, 15826])
    """
    if images is None:
        return None

    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        like = next(iter(task.parameters().values()))
        own_seed = SIMULATION + checks.integer("seed", seed, 0)
        x, y = x.to(like), y.to(like.device)
        robust, observation = uploads(task, defense, x, y, labels=False, seed=own_seed)
        return SimulatedUploads([observation.gradient], robust)

    return Simulator(images.images, images.labels, protect)
