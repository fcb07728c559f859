"""Small pictures, a small model, and for every attack the settings of a quick run."""

import pytest
import torch
from torch import Tensor

from refiner.attacks import (
    DLG,
    GGL,
    IDLG,
    Attack,
    GradInversion,
    InvertingGradients,
    Observation,
    ThreatModel,
)
from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import NoDefense
from refiner.models import LeNet

SIDE = 16
ALL = ThreatModel(labels=False, statistics=True, generator=True)


class Painter(torch.nn.Module):
    """A smooth map from ten numbers to pictures: a generator that is quick and knows nothing."""

    latent = 10

    def __init__(self) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.colours = torch.randn(self.latent, 3 * 4 * 4, generator=draws)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        coarse = torch.sigmoid((z @ self.colours).view(-1, 3, 4, 4))
        return torch.nn.functional.interpolate(coarse, size=SIDE, mode="bilinear")


PAINTER = Painter()
QUICK: dict[str, Attack] = {
    "dlg": DLG(iterations=4),
    "idlg": IDLG(iterations=4, restarts=2),
    "inverting": InvertingGradients(iterations=160),
    "gradinversion": GradInversion(iterations=200, total_variation=1e-5),
    "ggl": GGL(iterations=80, generator=PAINTER),
}


@pytest.fixture(scope="session")
def victims() -> tuple[Tensor, Tensor]:
    """Three single pictures, of which the last one is the generator's."""
    sample = load_sample()
    x = torch.nn.functional.avg_pool2d(sample.images[:3], 2)
    with torch.no_grad():
        x[2] = PAINTER(torch.linspace(-1, 1, 10)[None], sample.labels[2:3])[0]
    return x[:, None], sample.labels[:3, None]


@pytest.fixture(scope="session")
def task(victims: tuple[Tensor, Tensor]) -> Task:
    torch.manual_seed(0)
    return Task(LeNet(input_shape=(3, SIDE, SIDE)), example=victims[0][0])


@pytest.fixture(scope="session")
def seen(task: Task, victims: tuple[Tensor, Tensor]) -> Observation:
    return Observation.of(task, NoDefense().protect(task, *victims))
