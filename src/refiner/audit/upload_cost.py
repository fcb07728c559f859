"""What a defence costs its clients: the error of the uploads, and the time that one takes."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from refiner.audit.protocol import Protocol
from refiner.audit.result_records import UploadCost
from refiner.audit.uploads import FEDSGD, uploads, victims_per_call
from refiner.core.task import Task
from refiner.defenses import Defense, NoDefense

# An upload is timed so often, but not for longer than so many seconds; the shortest time counts, since other
# processes only add to it.
_REPETITIONS, _TIME_LIMIT = 8, 1.0


def measure_upload_cost(
    task: Task,
    defense: Defense,
    x: Tensor,
    y: Tensor,
    uploaded: Tensor,
    *,
    seed: int,
    chunk: int | None = None,
    protocol: Protocol = FEDSGD,
    send_to: Callable[[Task, int, int], None] = lambda task, client, clients: None,
) -> UploadCost:
    """Return how far uploads are from the real gradients, and how long the first client's takes.

    Args:
        task: The model and its loss.
        defense: The defence that made the uploads.
        x: Inputs `[V, B, *input]`.
        y: Labels `[V, B]`.
        uploaded: What the server sees of them, `[V, N]` or the means of several clients.
        seed: The seed of the defence's noise.
        chunk: Number of clients whose gradients are computed at a time; None chooses it.
        protocol: Local steps, and clients of a sum.
        send_to: As in `uploads`.

    Returns:
        The cost, at the batch size of `x`.

    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(2, 1, 3, 32, 32), torch.zeros(2, 1, dtype=torch.long)
    >>> task = Task(LeNet(), example=x[0])
    >>> uploaded = 2 * NoDefense().protect(task, x, y).flat()
    >>> round(measure_upload_cost(task, NoDefense(), x, y, uploaded, seed=0).gradient_error, 3)
    1.0
    """
    undefended = NoDefense()
    errors = []
    step = victims_per_call(protocol.observations(*y.shape)[1], chunk)
    for first in range(0, len(uploaded), step):
        rows = slice(protocol.summed_clients * first, protocol.summed_clients * (first + step))
        real = uploads(
            task, undefended, x[rows], y[rows], labels=False, seed=seed, protocol=protocol, send_to=send_to
        )[1].gradient
        distance = (uploaded[first : first + step] - real).norm(dim=1)
        # A client whose gradient is zero, and whose upload is zero too, has no error.
        errors.append(torch.where(distance == 0, 0.0, distance / real.norm(dim=1)))

    protectors: list[Defense] = [undefended] if isinstance(defense, NoDefense) else [undefended, defense]
    times = _shortest_times(
        [partial(protector.protect, task, x[:1], y[:1], seed=seed) for protector in protectors], x.device
    )
    return UploadCost(float(torch.cat(errors).mean()), times[-1], times[0])


def _shortest_times(calls: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """Return how long each call takes, in seconds: the shortest of a few, in turns."""
    times: list[list[float]] = [[] for _ in calls]
    while len(times[0]) < _REPETITIONS and sum(map(sum, times)) < _TIME_LIMIT:
        for call, own in zip(calls, times, strict=True):
            start = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            own.append(time.perf_counter() - start)
    return [min(own) for own in times]
