"""One round on one machine: the local steps of all participating clients in one vectorised call."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from refiner.core.flat_parameters import get_parameters, set_parameters
from refiner.core.task import Task
from refiner.core.update import Update
from refiner.defenses.base import Defense
from refiner.errors import DataError
from refiner.federation.federated_settings import FederatedSettings
from refiner.federation.schedule import Schedule, derive_seed

# Clients, and parameters over all of them, that are protected in one call. More need more memory and are no
# faster.
_MAX_CLIENTS, _MAX_PARAMETERS = 100, 2**26

# Clients that are protected in one call, the round, and the local step within it.
Step = tuple[list[int], int, int]


class LocalClients:
    """The clients of a federated training, with their data on the model's device.

    Args:
        task: The model and loss. Its parameters are the global model.
        images: All clients' images, uint8 `[S, 3, H, W]`.
        labels: Their labels, int64 `[S]`.
        schedule: Which client uses which samples in which round.
        defense: The clients' defence. Its state for this training is kept here.
        seed: Seed of the defence's noise in a reproducible experiment; None takes the noise from the
            operating system.

    Raises:
        DataError: If images or labels have the wrong type, shape or range. Data are checked here, once, so
            that no round depends on a check of its batches.

    >>> from refiner.defenses import NoDefense
    >>> from refiner.models import LeNet
    >>> images, labels = torch.zeros(8, 3, 32, 32, dtype=torch.uint8), torch.arange(8)
    >>> settings = FederatedSettings(rounds=1, clients=2, batch=4)
    >>> schedule = Schedule([torch.arange(4), torch.arange(4, 8)], settings)
    >>> task = Task(LeNet(), example=torch.zeros(1, 3, 32, 32))
    >>> LocalClients(task, images, labels, schedule, NoDefense()).mean_update(round=1).shape
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
        if images.dtype != torch.uint8 or tuple(images.shape[1:]) != task.input_shape:
            shape = f"[N, {', '.join(map(str, task.input_shape))}]"
            raise DataError(
                f"images: {images.dtype} {list(images.shape)}, expected torch.uint8 {shape}",
                field="images",
                value=images,
                expected=f"torch.uint8 {shape}",
            )
        if labels.dtype != torch.long or labels.shape != images.shape[:1]:
            raise DataError(
                f"labels: {labels.dtype} {list(labels.shape)}, expected torch.int64 [{len(images)}]",
                field="labels",
                value=labels,
                expected=f"torch.int64 [{len(images)}]",
            )
        low, high = int(labels.min()), int(labels.max())
        if low < 0 or high >= task.classes:
            raise DataError(
                f"labels in [{low}, {high}]: expected [0, {task.classes - 1}]",
                field="labels",
                value=labels,
                expected=f"values in [0, {task.classes - 1}]",
            )
        device = self._like.device
        self.task = task
        self.images, self.labels = images.to(device), labels.to(device)
        self.schedule = schedule
        self.defense = defense
        self._defense_state = defense.init_state(len(labels))
        self.seed = seed
        self._loaded: tuple[Step | None, Any] = (None, None)
        self._tasks_with_models: dict[int, Task] = {}

    @classmethod
    def seeded(
        cls, task: Task, images: Tensor, labels: Tensor, schedule: Schedule, defense: Defense
    ) -> "LocalClients":
        """Clients whose secrets and noise come from the seed of the settings, so that runs are repeatable."""
        seed = schedule.settings.seed
        if seed is not None:
            defense = defense.with_seeded_key(derive_seed(seed, "secret"))
        return cls(task, images, labels, schedule, defense, seed)

    @property
    def settings(self) -> FederatedSettings:
        """The settings of the training."""
        return self.schedule.settings

    def mean_update(self, round: int) -> Tensor:
        """The mean model update `[N]`, old − new parameters, of a round's clients, weighted by samples."""
        total, samples = None, 0
        groups = self._groups(round)
        next_round = self._groups(round + 1)[0] if round < self.settings.rounds else None
        for clients, next_clients in zip(groups, [*groups[1:], next_round], strict=True):
            size = self.schedule.batch_size(clients[0])
            next_step = None
            if next_clients is not None:
                next_step = next_clients, round + (next_clients is next_round), 0
            weighted = size * self._sum_of_updates(clients, round, next_step)
            total = weighted if total is None else total + weighted
            samples += size * len(clients)
        assert total is not None  # at least one client takes part
        return total / samples

    def _sum_of_updates(self, clients: list[int], round: int, next_step: Step | None) -> Tensor:
        """The sum `[N]` of the model updates of clients with batches of the same size."""
        steps, lr = self.settings.local_steps, self.settings.lr
        if steps == 1:
            return lr * self._protect(self.task, (clients, round, 0), next_step).flat().sum(0)
        if not self.defense.supports_models_per_victim:
            return torch.stack([self.client_update(client, round) for client in clients]).sum(0)
        before = get_parameters(self.task)
        if len(clients) not in self._tasks_with_models:
            # Reused in every round, so that CUDA graphs recorded for this task can be replayed.
            self._tasks_with_models[len(clients)] = self.task.with_models(before.repeat(len(clients), 1))
        task = self._tasks_with_models[len(clients)]
        assert task.models is not None
        task.models.copy_(before)
        updates = torch.zeros_like(task.models)
        for number in range(steps):
            following = (clients, round, number + 1) if number + 1 < steps else next_step
            updates += lr * self._protect(task, (clients, round, number), following).flat()
            torch.sub(before, updates, out=task.models)
        return updates.sum(0)

    def _groups(self, round: int) -> list[list[int]]:
        """A round's clients, grouped into calls: batches of the same size, up to the limits on memory."""
        by_size: defaultdict[int, list[int]] = defaultdict(list)
        for client in self.schedule.participants(round):
            by_size[self.schedule.batch_size(client)].append(client)
        limit = min(_MAX_CLIENTS, max(1, _MAX_PARAMETERS // self.task.size))
        return [
            clients[first : first + limit]
            for clients in by_size.values()
            for first in range(0, len(clients), limit)
        ]

    def state(self) -> dict[str, Tensor]:
        """The state of the clients' defence, to be stored in a checkpoint."""
        return self._defense_state.state_dict()

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Continue with a state that `state` returned; it may lie on another device."""
        self._defense_state.load_state_dict(self._on_device(state))

    def start_training(self, earlier: Mapping[str, Tensor]) -> None:
        """Begin a training of clients that have been in an earlier one, whose last `state` this is."""
        self._defense_state.start_training(self._on_device(earlier))

    def _on_device(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: value.to(self._like.device) for name, value in state.items()}

    def client_update(self, client: int, round: int) -> Tensor:
        """The model update `[N]` of one client over all its local steps; the global model is unchanged."""
        before = get_parameters(self.task)
        update = torch.zeros_like(before)
        try:
            for step in range(self.settings.local_steps):
                gradient = self._protect(self.task, ([client], round, step)).flat()[0]
                update += self.settings.lr * gradient
                set_parameters(self.task, before - update)
        finally:
            set_parameters(self.task, before)
        return update

    def _protect(self, task: Task, step: Step, next_step: Step | None = None) -> Update:
        """The protected gradients of a step's clients; the next step's data are loaded meanwhile."""
        clients, round, number = step
        ids, x, y = self._loaded[1] if self._loaded[0] == step else self._load(step)

        def load_next() -> None:
            self._loaded = (None, None)
            # If there is no memory for both, the next step loads its data itself.
            with suppress(torch.OutOfMemoryError):
                if next_step is not None:
                    self._loaded = next_step, self._load(next_step)

        noise_seed = None
        if self.seed is not None and not self.defense.uses_secret_key:
            noise_seed = derive_seed(self.seed, "noise", round, number, clients)
        return self.defense.protect_checked(
            task,
            x,
            y,
            ids=ids,
            seed=noise_seed,
            state=self._defense_state,
            clients=clients,
            meanwhile=load_next,
        )

    def _load(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """A step's sample indices `[V, B]`, by which a defence identifies samples, its images and labels."""
        clients, round, number = step
        indices = torch.stack([self.schedule.batch_indices(client, round, number) for client in clients])
        if self.images.is_cuda:
            # A copy from pageable memory would wait until the GPU has finished its queued work.
            indices = indices.pin_memory()
        indices = indices.to(self.images.device, non_blocking=True)
        return indices, self.images[indices].to(self._like.dtype) / 255, self.labels[indices]


def weighted_mean(updates: Tensor, samples: Sequence[int]) -> Tensor:
    """The mean `[N]` of model updates `[K, N]`, weighted by each client's number of samples.

    >>> weighted_mean(torch.tensor([[0.0], [4.0]]), [1, 3]).tolist()
    [3.0]
    """
    weights = torch.tensor(samples).to(updates)
    return (weights[:, None] * updates).sum(0) / weights.sum()
