"""The uploads of several rounds of federated training, and the simulator of the same rounds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from refiner import checks
from refiner.attacks import Observation, SimulatedUploads, Simulator
from refiner.audit.attacker_images import AttackerImages
from refiner.audit.client_states import ClientStates
from refiner.audit.protocol import Protocol
from refiner.audit.seeds import simulation_seed
from refiner.audit.uploads import FEDSGD, uploads
from refiner.core.flat_parameters import get_parameters, set_parameters
from refiner.core.task import Task
from refiner.defenses import Defense


@dataclass(frozen=True)
class Training:
    """How clients train before and between the uploads that an attacker sees.

    In all rounds and epochs clients keep what their defence remembers (`Defense.init_state`) and the noise of
    their images, if it has a secret key; noise on gradients is always new.

    Args:
        rounds: Uploads of each client. After each the server takes a step with the mean of all of them.
        epochs: Passes of a client over its data in a round.
        protocol: Local steps of an epoch, their learning rate, and clients of a sum.

    Raises:
        SettingError: A number is out of its range.

    >>> Training(epochs=4, protocol=Protocol(local_steps=2)).whole.local_steps
    8
    """

    rounds: int = 1
    epochs: int = 1
    protocol: Protocol = FEDSGD

    def __post_init__(self) -> None:
        checks.integer("rounds", self.rounds, 1, 1000)
        checks.integer("epochs", self.epochs, 1, 1000)

    @property
    def whole(self) -> Protocol:
        """The protocol with the steps of all epochs."""
        return replace(self.protocol, local_steps=self.protocol.local_steps * self.epochs)


def round_uploads(
    task: Task, defense: Defense, x: Tensor, y: Tensor, training: Training, seed: int
) -> list[Observation]:
    """Return what the server observes in each round; the model of `task` is afterwards as it was.

    Args:
        task: The model and its loss.
        defense: The defence of every client.
        x: Inputs `[V, B, *input]`.
        y: Labels `[V, B]`.
        training: Rounds, epochs and protocol.
        seed: The seed of the defence's noise.
    """
    observations = []
    with _parameters_kept(task) as before:
        parameters, states = before, ClientStates(defense)
        for number in range(training.rounds):
            set_parameters(task, parameters)
            observation = _observed(task, defense, x, y, training, seed, number, states)[1]
            observations.append(observation)
            parameters = parameters - training.protocol.lr * observation.gradient.mean(0)
    return observations


def round_simulator(
    task: Task,
    defense: Defense,
    public: AttackerImages,
    observations: list[Observation],
    training: Training,
) -> Simulator:
    """Return the defence as an attacker runs it, with the models of the rounds that it observed.

    Args:
        task: The model and its loss.
        defense: The clients' defence.
        public: The attacker's images.
        observations: What the attacker observed.
        training: Rounds, epochs and protocol.
    """

    def protect(x: Tensor, y: Tensor, seed: int) -> SimulatedUploads:
        own_seed = simulation_seed(seed)
        like = next(iter(task.parameters().values()))
        x = training.protocol.by_client(x.to(like))
        y = training.protocol.by_client(y.to(like.device))
        found, robust, states = [], None, ClientStates(defense)
        with _parameters_kept(task):
            for number, observation in enumerate(observations):
                flat = torch.cat([value.flatten() for value in observation.parameters.values()])
                set_parameters(task, flat)
                crafted, simulated = _observed(task, defense, x, y, training, own_seed, number, states)
                found.append(simulated.gradient)
                robust = crafted if number == 0 else robust
        if robust is not None:
            robust = training.protocol.observed(robust)
        return SimulatedUploads(found, robust)

    return Simulator(public.images, public.labels, protect)


def _observed(
    task: Task,
    defense: Defense,
    x: Tensor,
    y: Tensor,
    training: Training,
    seed: int,
    round: int,
    states: ClientStates,
) -> tuple[Tensor | None, Observation]:
    """The robust data and the uploads of one round; a client's samples recur in every epoch."""
    repeats = [1, training.epochs, *[1] * (x.ndim - 2)]
    robust, observation = uploads(
        task,
        defense,
        x.repeat(repeats),
        y.repeat(1, training.epochs),
        labels=False,
        seed=seed,
        protocol=training.whole,
        round=round,
        # What clients remember for a next round takes the memory of their uploads.
        states=states if training.rounds > 1 else None,
    )
    samples = x.shape[1] * training.protocol.summed_clients
    if robust is not None:
        robust = robust[:, : x.shape[1]]
    return robust, replace(observation, samples=samples)


@contextmanager
def _parameters_kept(task: Task) -> Iterator[Tensor]:
    """Give the parameters as one tensor, and put them back at the end."""
    before = get_parameters(task).clone()
    try:
        yield before
    finally:
        set_parameters(task, before)
