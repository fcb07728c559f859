"""What clients upload after one or several local steps, each protected by the defence."""

from typing import NamedTuple

import torch
from torch import Tensor

from refiner.attacks import Observation
from refiner.audit.client_states import ClientStates
from refiner.audit.seeds import ROUND_SEED, STEP_SEED
from refiner.core.flat_parameters import get_parameters, set_parameters
from refiner.core.task import Task
from refiner.defenses import Defense, Protection

# Parameters, over all clients, that are changed in one call; with more, one client follows another.
_MAX_PARAMETERS = 2**26

# Raise it whenever a change gives the same clients other uploads, by more than rounding: other noise, another
# state, another order of steps. Kept results of an earlier revision are then computed again.
# 2: later parts of a chain draw new noise for every upload, and clients keep their defence's state.
# 3: noisy images are rounded.
UPLOADS_REVISION = 3


class LocalUpdate(NamedTuple):
    """The uploads of V clients."""

    robust: Tensor | None
    """The robust data `[V, B, *input]`, if the defence makes any."""
    observation: Observation
    """The uploads as the server sees them."""


def local_update(
    task: Task,
    defense: Defense,
    x: Tensor,
    y: Tensor,
    *,
    steps: int,
    lr: float,
    seed: int,
    first_victim: int,
    round: int = 0,
    states: ClientStates | None = None,
) -> LocalUpdate:
    """Return the sum of the protected gradients of every client's local steps.

    Args:
        task: The model and its loss; all clients start with it.
        defense: The defence of every step.
        x: Inputs `[V, B, *input]`; the first B / steps are those of the first step.
        y: Labels `[V, B]`.
        steps: Steps of SGD, a divisor of B.
        lr: Their learning rate.
        seed: The seed of the defence's noise.
        first_victim: The number of the first client, for the noise.
        round: The number of the round. In all rounds and steps noise on gradients is new, and that of samples
            the same if the defence has a secret key.
        states: What the clients remember from earlier rounds, updated in place; None before the first.

    Returns:
        The uploads. For one step it is the client's gradient.
    """
    states = ClientStates(defense) if states is None else states
    together = steps == 1 or (defense.supports_models_per_victim and len(x) * task.size <= _MAX_PARAMETERS)
    if len(x) > 1 and not together:
        parts = [
            local_update(
                task,
                defense,
                x[i : i + 1],
                y[i : i + 1],
                steps=steps,
                lr=lr,
                seed=seed,
                first_victim=first_victim + i,
                round=round,
                states=states,
            )
            for i in range(len(x))
        ]
        robust = [part.robust for part in parts if part.robust is not None]
        return LocalUpdate(torch.cat(robust) if robust else None, _joined([p.observation for p in parts]))
    state = states.of(first_victim, x.shape[0] * x.shape[1])
    inputs = x.chunk(steps, 1)

    def protect(own: Task, part_y: Tensor, number: int) -> Protection:
        first = next(step for step in range(steps) if torch.equal(inputs[step], inputs[number]))
        own_seed, upload = noise_of(defense, seed, round=round, steps=steps, number=number, first=first)
        return defense.protection(
            own,
            inputs[number],
            part_y,
            ids=_ids(x, steps, first),
            seed=own_seed,
            first_victim=first_victim,
            upload=upload,
            state=state,
        )

    if steps == 1:
        protection = protect(task, y, 0)
        return LocalUpdate(protection.robust, Observation.of(task, protection.update))
    before = get_parameters(task)
    total = before.new_zeros(len(x), len(before))
    observation, robust = None, []
    try:
        for number, part_y in enumerate(y.chunk(steps, 1)):
            own = task
            if number and together:
                own = task.with_models(before - lr * total)
            elif number:
                set_parameters(task, (before - lr * total)[0])
            protection = protect(own, part_y, number)
            if number == 0:
                observation = Observation.of(task, protection.update)
            total += protection.update.flat()
            if protection.robust is not None:
                robust.append(protection.robust)
    finally:
        set_parameters(task, before)
    assert observation is not None
    return LocalUpdate(
        torch.cat(robust, dim=1) if robust else None, _with_gradient(observation, total, x.shape[1])
    )


def noise_of(
    defense: Defense, seed: int, *, round: int, steps: int, number: int, first: int
) -> tuple[int, int]:
    """Return the seed of a step of a round, and the number of its upload among those with that seed.

    With a secret key the noise belongs to samples: wherever they recur, the seed is that of the step in which
    they came first, and only the number is new.

    Args:
        defense: The defence of every step.
        seed: The seed of the first step of the first round.
        round: The number of the round.
        steps: Steps of a round.
        number: The number of the step.
        first: The number of the first step with the same samples.

    >>> from refiner.defenses import NoDefense, Refiner
    >>> noise_of(Refiner(), 7, round=0, steps=3, number=2, first=0)
    (7, 2)
    >>> noise_of(NoDefense(), 7, round=0, steps=3, number=2, first=0)
    (2199023255559, 0)
    """
    if not defense.uses_secret_key:
        return seed + number * STEP_SEED + round * max(ROUND_SEED, steps * STEP_SEED), 0
    return seed + first * STEP_SEED, round * steps + number - first


def _ids(x: Tensor, steps: int, first: int) -> Tensor:
    """The ids of the samples of the step `first`: by its content, one that two clients have would be one."""
    return torch.arange(x.shape[0] * x.shape[1], device=x.device).view(x.shape[:2]).chunk(steps, 1)[first]


def _joined(observations: list[Observation]) -> Observation:
    gradient = torch.cat([observation.gradient for observation in observations])
    return _with_gradient(observations[0], gradient, observations[0].samples)


def _with_gradient(like: Observation, gradient: Tensor, samples: int) -> Observation:
    return Observation(like.task, like.parameters, gradient, samples, None, like.statistics)
