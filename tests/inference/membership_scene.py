"""Small clients: rows of features, a small network, and candidates that are half members."""

from typing import NamedTuple

import torch
from torch import Tensor

from refiner.attacks import Observation, Simulator
from refiner.audit.attacker_images import AttackerImages
from refiner.audit.membership.uploads import Training, round_simulator, round_uploads
from refiner.core import Task
from refiner.defenses import Defense, NoDefense
from refiner.inference import Candidates

CLIENTS, BATCH, WIDTH = 12, 4, 24


class Scene(NamedTuple):
    """Clients with their candidates, members first, and public rows."""

    task: Task
    x: Tensor
    y: Tensor
    candidates: Candidates
    public: tuple[Tensor, Tensor]

    def observed(
        self, defense: Defense | None = None, training: Training | None = None
    ) -> tuple[list[Observation], Simulator]:
        defense, training = defense or NoDefense(), training or Training()
        observations = round_uploads(self.task, defense, self.x, self.y, training, seed=7)
        public = AttackerImages(*self.public, "public rows")
        return observations, round_simulator(self.task, defense, public, observations, training)


def make_scene(seed: int = 0) -> Scene:
    """The same clients for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    count = 2 * CLIENTS * BATCH
    rows = torch.rand(count + 400, WIDTH, generator=generator)
    labels = torch.randint(2, (CLIENTS, BATCH), generator=generator)
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(WIDTH, 12), torch.nn.Tanh(), torch.nn.Linear(12, 2))
    x = rows[:count].view(CLIENTS, 2 * BATCH, WIDTH)
    public = rows[count:], torch.arange(400) % 2
    candidates = Candidates(x, torch.cat([labels, labels], 1))
    return Scene(Task(network, example=rows[:2]), x[:, :BATCH], labels, candidates, public)
