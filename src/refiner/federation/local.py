"""One round on one machine: all clients that take part are protected in one vectorised call."""

from collections import defaultdict

import torch
from torch import Tensor

from refiner.core.task import Task
from refiner.core.update import Update
from refiner.defenses.base import Defense
from refiner.federation.schedule import Schedule, derived
from refiner.federation.settings import Training


class LocalClients:
    """The clients of a training, with their data on the model's device.

    >>> from refiner.defenses import NoDefense
    >>> from refiner.models import LeNet
    >>> pictures, labels = torch.zeros(8, 3, 32, 32, dtype=torch.uint8), torch.arange(8)
    >>> training = Training(rounds=1, clients=2, batch=4)
    >>> schedule = Schedule([torch.arange(4), torch.arange(4, 8)], training)
    >>> task = Task(LeNet(), example=torch.zeros(1, 3, 32, 32))
    >>> LocalClients(task, pictures, labels, schedule, NoDefense()).moves(round=1).shape
    torch.Size([15826])
    """

    def __init__(
        self, task: Task, pictures: Tensor, labels: Tensor, schedule: Schedule, defense: Defense
    ) -> None:
        device = next(iter(task.parameters().values())).device
        self.task = task
        self.pictures, self.labels = pictures.to(device), labels.to(device)
        self.schedule = schedule
        seed = schedule.training.seed
        secret = None if seed is None else derived(seed, "secret")
        self.defense = defense.for_training(len(labels), secret)

    @property
    def training(self) -> Training:
        """The settings of the training."""
        return self.schedule.training

    def moves(self, round: int) -> Tensor:
        """The mean move `[N]`, old − new parameters, of a round's clients, each by its number of samples."""
        clients = self.schedule.participants(round)
        if self.training.local_steps > 1:
            each = [self._walk(client, round) for client in clients]
            sizes = torch.tensor([len(self.schedule.batch(client, round)) for client in clients])
            return _mean(torch.stack(each), sizes.to(each[0]))
        # Clients with equally large batches go in one call.
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for client in clients:
            groups[len(self.schedule.batch(client, round))].append(client)
        parts, sizes_of = [], []
        for size, members in groups.items():
            samples = torch.stack([self.schedule.batch(client, round) for client in members])
            parts.append(self._protect(samples, round, 0, members).flat())
            sizes_of += [size] * len(members)
        flat = torch.cat(parts)
        return self.training.lr * _mean(flat, torch.tensor(sizes_of).to(flat))

    def _walk(self, client: int, round: int) -> Tensor:
        """The move of a client that takes several local steps; the model is as before afterwards."""
        before = get_parameters(self.task)
        total = torch.zeros_like(before)
        try:
            for step in range(self.training.local_steps):
                samples = self.schedule.batch(client, round, step)[None]
                gradient = self._protect(samples, round, step, [client]).flat()[0]
                total += self.training.lr * gradient
                set_parameters(self.task, before - total)
        finally:
            set_parameters(self.task, before)
        return total

    def _protect(self, samples: Tensor, round: int, step: int, clients: list[int]) -> Update:
        """The update of `samples [V, B]`, which are also the ids by which a defence remembers them."""
        here = samples.to(self.pictures.device)
        x = self.pictures[here].to(next(iter(self.task.parameters().values())).dtype) / 255
        seed = self.training.seed
        drawn = None
        if seed is not None and not self.defense.keyed:
            drawn = derived(seed, "noise", round, step, clients)
        return self.defense.protect(self.task, x, self.labels[here], ids=here, seed=drawn)


def set_parameters(task: Task, flat: Tensor) -> None:
    """Give the model of `task` the parameters `flat [N]`."""
    sizes = [task.shapes[name].numel() for name in task.names]
    with torch.no_grad():
        for name, part in zip(task.names, torch.split(flat, sizes), strict=True):
            task.model.get_parameter(name).copy_(part.view(task.shapes[name]))


def get_parameters(task: Task) -> Tensor:
    """The parameters of the model of `task`, `[N]`."""
    return torch.cat([value.flatten() for value in task.parameters().values()])


def _mean(rows: Tensor, weights: Tensor) -> Tensor:
    return (weights[:, None] * rows).sum(0) / weights.sum()
