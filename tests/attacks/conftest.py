"""Small images, small models, and every gradient-matching attack with the settings of a quick run."""

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
from refiner.attacks.matching import idlg
from refiner.core import Task
from refiner.data import load_sample
from refiner.defenses import NoDefense
from refiner.models import LeNet

SIDE = 8
ALL = ThreatModel(labels=False, statistics=True, generator=True)


class SmoothGenerator(torch.nn.Module):
    """A smooth, untrained map from ten numbers to images: a generator that is fast."""

    latent = 10

    def __init__(self) -> None:
        super().__init__()
        draws = torch.Generator().manual_seed(0)
        self.colours = torch.randn(self.latent, 3 * 4 * 4, generator=draws)

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        coarse = torch.sigmoid((z @ self.colours).view(-1, 3, 4, 4))
        return torch.nn.functional.interpolate(coarse, size=SIDE, mode="bilinear")


GENERATOR = SmoothGenerator()
QUICK: dict[str, Attack] = {
    "dlg": DLG(iterations=2),
    "idlg": IDLG(iterations=1, restarts=2),
    "inverting": InvertingGradients(iterations=70),
    "gradinversion": GradInversion(iterations=70, total_variation=1e-5),
    "ggl": GGL(iterations=80, generator=GENERATOR),
}
"""Every attack by gradient matching."""
TESTED_ALONE = (
    "linear",
    "analytic",
    "april",
    "learned",
    "denoiser",
    "adaptive",
    "imprint",
    "loki",
    "trap-weights",
    "folds",
    "spear",
    "activations",
)
"""The other attacks: each has tests of its own."""


@pytest.fixture(scope="session")
def victims() -> tuple[Tensor, Tensor]:
    """Three single images; the last one is an output of the generator."""
    sample = load_sample()
    x = torch.nn.functional.avg_pool2d(sample.images[:3], 4)
    with torch.no_grad():
        x[2] = GENERATOR(torch.linspace(-1, 1, 10)[None], sample.labels[2:3])[0]
    return x[:, None], sample.labels[:3, None]


@pytest.fixture(scope="session")
def task(victims: tuple[Tensor, Tensor]) -> Task:
    torch.manual_seed(0)
    return Task(LeNet(input_shape=(3, SIDE, SIDE)), example=victims[0][0])


@pytest.fixture(scope="session")
def observation(task: Task, victims: tuple[Tensor, Tensor]) -> Observation:
    """Undefended uploads of the victims with LeNet."""
    return Observation.of(task, NoDefense().protect(task, *victims))


@pytest.fixture(scope="session")
def small_observation(victims: tuple[Tensor, Tensor]) -> Observation:
    """As `observation`, with one convolution instead of LeNet's three: attacks take a third of the time."""
    torch.manual_seed(0)
    body = torch.nn.Conv2d(3, 12, 5, stride=2, padding=2)
    model = torch.nn.Sequential(body, torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(3 * SIDE**2, 10))
    task = Task(model, example=victims[0][0])
    return Observation.of(task, NoDefense().protect(task, *victims))


@pytest.fixture
def few_lbfgs_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reduce the 20 steps in an iteration of DLG and iDLG to 5."""
    monkeypatch.setattr(idlg, "_STEPS_PER_ITERATION", 5)
