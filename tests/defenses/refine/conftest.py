"""A model and images in float64, so that a wrong equation differs from rounding error."""

import pytest
import torch
from torch import Tensor, nn

from refiner.core import Task
from refiner.data import load_sample


class Backwards(nn.Module):
    """Three layers that are registered in the reverse of the order in which they run: body, middle, head."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 10)
        self.middle = nn.Linear(147, 6)
        self.body = nn.Conv2d(3, 3, 5, stride=4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.body(x)).flatten(1)
        scores: Tensor = self.head(torch.tanh(self.middle(hidden)))
        return scores


@pytest.fixture(scope="module")
def backwards() -> nn.Module:
    torch.manual_seed(0)
    return Backwards().double()


@pytest.fixture(scope="module")
def task(backwards: nn.Module) -> Task:
    return Task(backwards, example=torch.rand(2, 3, 32, 32, dtype=torch.float64))


@pytest.fixture(scope="module")
def images() -> tuple[Tensor, Tensor]:
    """32 victims of one image each."""
    sample = load_sample()
    return sample.images[:32, None].double(), sample.labels[:32, None]
