"""The uploads of many victims under one defence, as the server observes them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Attack, Observation, SimulatedUploads, Simulator
from refiner.audit.attacker_images import AttackerImages
from refiner.audit.client_states import ClientStates
from refiner.audit.local_update import local_update
from refiner.audit.protocol import Protocol
from refiner.audit.seeds import simulation_seed
from refiner.core.task import Task
from refiner.defenses import Defense

# Number of samples that are protected at a time.
_SAMPLES_PER_CALL = 256
FEDSGD = Protocol()
"""One gradient for each client."""


def uploads(
    task: Task,
    defense: Defense,
    x: Tensor,
    y: Tensor,
    *,
    labels: bool,
    seed: int,
    chunk: int | None = None,
    protocol: Protocol = FEDSGD,
    round: int = 0,
    states: ClientStates | None = None,
    send_to: Callable[[Task, int, int], None] = lambda task, client, clients: None,
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
        protocol: Local steps, and clients of a sum.
        round: The number of the round; see `local_update`.
        states: What the victims remember from earlier rounds, with the same `chunk`; None before the first.
        send_to: Called before the uploads of the clients with a certain number in their sums: the server may
            change their model (see `Attack.send_to`).
        on_progress: Called with the number of victims done and their total.

    >>> from refiner.defenses import NoDefense
    >>> from refiner.models import LeNet
    >>> x, y = torch.rand(4, 1, 3, 32, 32), torch.zeros(4, 1, dtype=torch.long)
    >>> task = Task(LeNet(), example=x[0])
    >>> uploads(task, NoDefense(), x, y, labels=False, seed=0, chunk=3)[1].victims
    4
    >>> uploads(task, NoDefense(), x, y, labels=False, seed=0, protocol=Protocol(summed_clients=2))[1].samples
    2
    """
    observations, samples = protocol.observations(len(x), x.shape[1])
    step = victims_per_call(x.shape[1], chunk)
    protect = partial(
        local_update,
        task,
        defense,
        steps=protocol.local_steps,
        lr=protocol.lr,
        seed=seed,
        round=round,
        states=states,
    )
    robust: list[list[Tensor]] = []
    total, like = None, None
    for client in range(protocol.summed_clients):
        send_to(task, client, protocol.summed_clients)
        # A client of every sum.
        own_x, own_y = x[client :: protocol.summed_clients], y[client :: protocol.summed_clients]
        gradients = []
        robust.append([])
        for first in range(0, observations, step):
            on_progress(client * observations + first, len(x))
            rows = slice(first, first + step)
            update = protect(own_x[rows], own_y[rows], first_victim=client * observations + first)
            if update.robust is not None:
                robust[-1].append(update.robust)
            like = like or update.observation
            gradients.append(update.observation.gradient)
        total = torch.cat(gradients) if total is None else total.add_(torch.cat(gradients))
    send_to(task, 0, protocol.summed_clients)
    on_progress(len(x), len(x))
    assert total is not None and like is not None
    gradient = total / protocol.summed_clients
    observation = replace(
        like, gradient=gradient, samples=samples, labels=protocol.observed(y) if labels else None
    )
    if not robust[0]:
        return None, observation
    return torch.stack([torch.cat(own) for own in robust], dim=1).flatten(0, 1), observation


def uploads_in_rounds(
    task: Task,
    defense: Defense,
    x: Tensor,
    y: Tensor,
    attack: Attack | None = None,
    *,
    labels: bool,
    seed: int,
    chunk: int | None = None,
    protocol: Protocol = FEDSGD,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Tensor | None, list[Observation]]:
    """The robust data of the first round, and what the server observes in each.

    Args:
        task: The model and its loss, as the attack changed it.
        defense: The defence of every victim, whose clients keep its state between rounds.
        x: Inputs `[V, B, *input]`.
        y: Labels `[V, B]`.
        attack: Who may send other models to each client and in each round; None sends `task` once.
        labels: Whether observations include the labels.
        seed: As in `uploads`; so are all that follow.
        chunk: Number of victims protected at a time.
        protocol: Local steps, and clients of a sum.
        on_progress: Called with the uploads done and their total.

    Returns:
        Robust data, None if the defence crafts none, and observations.
    """
    rounds = 1 if attack is None else attack.rounds
    states, robust, observations = ClientStates(defense), None, []

    def show(number: int, done: int, total: int) -> None:
        on_progress(number * total + done, rounds * total)

    try:
        for number in range(rounds):
            if attack is not None:
                attack.send_in_round(task, number)
            own, observation = uploads(
                task,
                defense,
                x,
                y,
                labels=labels,
                seed=seed,
                chunk=chunk,
                protocol=protocol,
                round=number,
                states=states,
                send_to=(lambda task, client, clients: None) if attack is None else attack.send_to,
                on_progress=partial(show, number),
            )
            robust = own if number == 0 else robust
            observations.append(observation)
    finally:
        if attack is not None:
            attack.send_in_round(task, 0)
    return robust, observations


def victims_per_call(batch: int, chunk: int | None = None) -> int:
    """Return how many clients with batches of `batch` samples are protected at a time.

    >>> victims_per_call(16), victims_per_call(16, chunk=3)
    (16, 3)
    """
    return max(1, _SAMPLES_PER_CALL // batch) if chunk is None else checks.integer("chunk", chunk, 1)


def simulator(
    task: Task,
    defense: Defense,
    images: AttackerImages | None,
    *,
    protocol: Protocol = FEDSGD,
    attack: Attack | None = None,
) -> Simulator | None:
    """Return the defence as an attacker runs it on public images; None if there are no images.

    All noise comes from seeds, also that of a defence that has a client's secret: the attacker never has it.
    The seeds are those of no victim, whichever the attack chooses.

    Args:
        task: The model and its loss.
        defense: The victims' defence.
        images: The attacker's images.
        protocol: Local steps, and clients of a sum.
        attack: As in `uploads_in_rounds`.

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
        own_seed = simulation_seed(seed)
        x, y = protocol.by_client(x.to(like)), protocol.by_client(y.to(like.device))
        robust, observations = uploads_in_rounds(
            task, defense, x, y, attack, labels=False, seed=own_seed, protocol=protocol
        )
        gradients = [observation.gradient for observation in observations]
        return SimulatedUploads(gradients, None if robust is None else protocol.observed(robust))

    return Simulator(images.images, images.labels, protect)
