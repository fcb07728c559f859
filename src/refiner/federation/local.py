"""One round on one machine: all clients that take part are protected in one vectorised call."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from refiner.core.task import Task
from refiner.core.update import Update
from refiner.defenses.base import Defense
from refiner.federation.schedule import Schedule, derived
from refiner.federation.settings import Training


class LocalClients:
    """The clients of a training, with their data on the model's device.

    `defense` is one `for_training`; `seed` is a study's and makes its noise, None takes that from the
    operating system.

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
        self,
        task: Task,
        pictures: Tensor,
        labels: Tensor,
        schedule: Schedule,
        defense: Defense,
        seed: int | None = None,
    ) -> None:
        device = next(iter(task.parameters().values())).device
        self.task = task
        self.pictures, self.labels = pictures.to(device), labels.to(device)
        self.schedule = schedule
        self.defense = defense
        self.seed = seed

    @classmethod
    def of_study(
        cls, task: Task, pictures: Tensor, labels: Tensor, schedule: Schedule, defense: Defense
    ) -> "LocalClients":
        """Clients whose secrets and noise come from the seed of the training, so that it can be repeated."""
        seed = schedule.training.seed
        secret = None if seed is None else derived(seed, "secret")
        return cls(task, pictures, labels, schedule, defense.for_training(len(labels), secret), seed)

    @property
    def training(self) -> Training:
        """The settings of the training."""
        return self.schedule.training

    def moves(self, round: int) -> Tensor:
        """The mean move `[N]`, old − new parameters, of a round's clients, each by its number of samples."""
        clients = self.schedule.participants(round)
        if self.training.local_steps > 1:
            each = [self.move(client, round) for client in clients]
            sizes = [len(self.schedule.batch(client, round)) for client in clients]
            return weighted_mean(torch.stack(each), sizes)
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
        return self.training.lr * weighted_mean(flat, sizes_of)

    def state(self) -> dict[str, Tensor]:
        """What the clients' defence remembers."""
        return self.defense.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on with what the defence remembered."""
        self.defense.restore(state)

    def move(self, client: int, round: int) -> Tensor:
        """The move `[N]` of one client, all of its local steps; the model is as before afterwards."""
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
        drawn = None
        if self.seed is not None and not self.defense.keyed:
            drawn = derived(self.seed, "noise", round, step, clients)
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


def weighted_mean(rows: Tensor, sizes: Sequence[int]) -> Tensor:
    """The mean `[N]` of rows `[K, N]`, each by its number of samples.

    >>> weighted_mean(torch.tensor([[0.0], [4.0]]), [1, 3]).tolist()
    [3.0]
    """
    weights = torch.tensor(sizes).to(rows)
    return (weights[:, None] * rows).sum(0) / weights.sum()
