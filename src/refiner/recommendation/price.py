"""What a defence costs: the error of its uploads at the real batch size, their time and their size."""

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from refiner.core.gradients import flatten, gradients
from refiner.core.task import Task
from refiner.defenses import Defense, NoDefense


@dataclass(frozen=True)
class Price:
    """The price of a defence."""

    gradient_error: float
    """‖upload − gradient‖ / ‖gradient‖, mean over batches of the real size."""
    slowdown: float
    """The time of an upload in multiples of an undefended one."""
    upload_bytes: int | None
    """The size of a compressed upload; None if unknown."""
    pmm: float | None = None
    """Accuracy after a short training, in percent of the undefended one; None if it was not measured."""


def measure_price(task: Task, defense: Defense, x: Tensor, y: Tensor, seed: int) -> Price:
    """Return the price of a defence, without a training.

    Args:
        task: The model and its loss.
        defense: The defence.
        x: Batches of the real size, `[V, B, *input]`.
        y: Their labels `[V, B]`.
        seed: The seed of the defence's noise.

    Returns:
        The price. Its `slowdown` varies from run to run.

    >>> from refiner.defenses import Pruning
    >>> task = Task(torch.nn.Linear(4, 2), example=torch.rand(1, 4))
    >>> x, y = torch.rand(1, 8, 4), torch.zeros(1, 8, dtype=torch.long)
    >>> price = measure_price(task, Pruning(rate=0.5), x, y, seed=0)
    >>> 0 < price.gradient_error < 1
    True
    """
    real = flatten(gradients(task, x, y))
    plain_seconds = _upload(task, NoDefense(), x, y, seed)[1]
    upload, seconds = _upload(task, defense, x, y, seed)
    error = (upload - real).norm(dim=1) / real.norm(dim=1).clamp_min(1e-30)
    return Price(float(error.mean()), seconds / plain_seconds, defense.wire_bytes(task.shapes))


def _upload(task: Task, defense: Defense, x: Tensor, y: Tensor, seed: int) -> tuple[Tensor, float]:
    """The uploads `[V, N]` and their seconds; on a GPU after a first call, which chooses kernels."""
    if x.is_cuda:
        defense.protect(task, x, y, seed=seed, state=defense.init_state())
    _synchronize(x)
    start = time.perf_counter()
    update = defense.protect(task, x, y, seed=seed, state=defense.init_state())
    _synchronize(x)
    return flatten(update.tensors), time.perf_counter() - start


def _synchronize(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize(x.device)
