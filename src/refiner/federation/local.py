"""One round on one machine: clients are protected in one vectorised call, their local steps as well."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from refiner.core.task import Task
from refiner.core.update import Update
from refiner.defenses.base import Defense
from refiner.errors import DataError
from refiner.federation.schedule import Schedule, derived
from refiner.federation.settings import Training

# The most clients, and parameters of all of them, that are protected in one call: more need more memory, and
# are no faster.
_CLIENTS, _NUMBERS = 100, 2**26

# Clients that are protected in one call, the round, and the local step in it.
Step = tuple[list[int], int, int]


class LocalClients:
    """The clients of a training, with their data on the model's device.

    `defense` is one `for_training`; `seed` is a study's and makes its noise, None takes that from the
    operating system.

    >>> from refiner.defenses import NoDefense
    >>> from refiner.models import LeNet
    >>> images, labels = torch.zeros(8, 3, 32, 32, dtype=torch.uint8), torch.arange(8)
    >>> training = Training(rounds=1, clients=2, batch=4)
    >>> schedule = Schedule([torch.arange(4), torch.arange(4, 8)], training)
    >>> task = Task(LeNet(), example=torch.zeros(1, 3, 32, 32))
    >>> LocalClients(task, images, labels, schedule, NoDefense()).moves(round=1).shape
    torch.Size([15826])
    """

    def __init__(
        self,
        task: Task,
        images: Tensor,
        labels: Tensor,
        schedule: Schedule,
        defense: Defense,
        seed: int | None = None,
    ) -> None:
        self._like = next(iter(task.parameters().values()))
        # Checked here, once, so that no round need check its batches.
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != task.input_shape:
            raise DataError(
                f"images: {images.dtype} {list(images.shape)}, "
                f"expected torch.uint8 [N, {', '.join(map(str, task.input_shape))}]"
            )
        if labels.dtype != torch.long or labels.shape != images.shape[:1]:
            raise DataError(
                f"labels: {labels.dtype} {list(labels.shape)}, expected torch.int64 [{len(images)}]"
            )
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= task.classes:
            raise DataError(f"labels in [{low}, {high}]: expected [0, {task.classes - 1}]")
        device = self._like.device
        self.task = task
        self.images, self.labels = images.to(device), labels.to(device)
        self.schedule = schedule
        self.defense = defense
        self.seed = seed
        self._loaded: tuple[Step | None, Any] = (None, None)
        self._own: dict[int, Task] = {}

    @classmethod
    def of_study(
        cls, task: Task, images: Tensor, labels: Tensor, schedule: Schedule, defense: Defense
    ) -> "LocalClients":
        """Clients whose secrets and noise come from the seed of the training, so that it can be repeated."""
        seed = schedule.training.seed
        secret = None if seed is None else derived(seed, "secret")
        return cls(task, images, labels, schedule, defense.for_training(len(labels), secret), seed)

    @property
    def training(self) -> Training:
        """The settings of the training."""
        return self.schedule.training

    def moves(self, round: int) -> Tensor:
        """The mean move `[N]`, old − new parameters, of a round's clients, each by its number of samples."""
        total, samples = None, 0
        groups = self._groups(round)
        following = self._groups(round + 1)[0] if round < self.training.rounds else None
        for clients, ahead in zip(groups, [*groups[1:], following], strict=True):
            size = self.schedule.size(clients[0])
            after = None if ahead is None else (ahead, round + (ahead is following), 0)
            moved = size * self._moved(clients, round, after)
            total = moved if total is None else total + moved
            samples += size * len(clients)
        assert total is not None  # some client always takes part
        return total / samples

    def _moved(self, clients: list[int], round: int, after: Step | None) -> Tensor:
        """The sum `[N]` of the moves of clients with equally large batches."""
        steps, lr = self.training.local_steps, self.training.lr
        if steps == 1:
            return lr * self._protect(self.task, (clients, round, 0), after).flat().sum(0)
        if not self.defense.takes_models:
            return torch.stack([self.move(client, round) for client in clients]).sum(0)
        before = get_parameters(self.task)
        if len(clients) not in self._own:
            # Kept, so that what was recorded of this task is replayed.
            self._own[len(clients)] = self.task.each(before.repeat(len(clients), 1))
        own = self._own[len(clients)]
        assert own.models is not None
        own.models.copy_(before)
        moves = torch.zeros_like(own.models)
        for number in range(steps):
            ahead = (clients, round, number + 1) if number + 1 < steps else after
            moves += lr * self._protect(own, (clients, round, number), ahead).flat()
            torch.sub(before, moves, out=own.models)
        return moves.sum(0)

    def _groups(self, round: int) -> list[list[int]]:
        """A round's clients: those with equally large batches go in one call, as far as it can hold them."""
        groups: defaultdict[int, list[int]] = defaultdict(list)
        for client in self.schedule.participants(round):
            groups[self.schedule.size(client)].append(client)
        at_once = min(_CLIENTS, max(1, _NUMBERS // self.task.size))
        return [
            members[first : first + at_once]
            for members in groups.values()
            for first in range(0, len(members), at_once)
        ]

    def state(self) -> dict[str, Tensor]:
        """What the clients' defence remembers."""
        return self.defense.state()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on with what the defence remembered, wherever it was kept."""
        self.defense.restore({name: value.to(self._like.device) for name, value in state.items()})

    def move(self, client: int, round: int) -> Tensor:
        """The move `[N]` of one client, all of its local steps; the model is as before afterwards."""
        before = get_parameters(self.task)
        total = torch.zeros_like(before)
        try:
            for step in range(self.training.local_steps):
                gradient = self._protect(self.task, ([client], round, step)).flat()[0]
                total += self.training.lr * gradient
                set_parameters(self.task, before - total)
        finally:
            set_parameters(self.task, before)
        return total

    def _protect(self, task: Task, step: Step, ahead: Step | None = None) -> Update:
        """The update of a step's clients; while a GPU works on it, the data of step `ahead` are loaded."""
        clients, round, number = step
        ids, x, y = self._loaded[1] if self._loaded[0] == step else self._load(step)

        def meanwhile() -> None:
            self._loaded = (None, None)
            # Without room for both, each step loads its own.
            with suppress(torch.OutOfMemoryError):
                if ahead is not None:
                    self._loaded = ahead, self._load(ahead)

        drawn = None
        if self.seed is not None and not self.defense.keyed:
            drawn = derived(self.seed, "noise", round, number, clients)
        return self.defense.protect_checked(task, x, y, ids=ids, seed=drawn, meanwhile=meanwhile)

    def _load(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """The samples `[V, B]` of a step, which are also the ids by which a defence remembers them; x; y."""
        clients, round, number = step
        rows = torch.stack([self.schedule.batch(client, round, number) for client in clients])
        if self.images.is_cuda:
            # From pageable memory, the copy would wait until the GPU has done what it was given before.
            rows = rows.pin_memory()
        here = rows.to(self.images.device, non_blocking=True)
        return here, self.images[here].to(self._like.dtype) / 255, self.labels[here]


def set_parameters(task: Task, flat: Tensor) -> None:
    """Give the model of `task` the parameters `flat [N]`."""
    values = list(task.parameters().values())
    pieces = torch.split(flat, [value.numel() for value in values])
    torch._foreach_copy_(values, [p.view_as(value) for p, value in zip(pieces, values, strict=True)])


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
