"""In a training a client answers whatever its data: values that are not finite are replaced."""

import pytest
import torch
from torch import Tensor, nn

import refiner
from refiner import Task
from refiner.defenses import make_defense
from refiner.errors import ProtectionError

pytestmark = pytest.mark.hostile

DEFENSES = ["none", "refiner", "dp-gaussian", "pruning", "gq", "soteria", "dp-gaussian+gq"]
IMAGES = torch.rand(4, 1, 4, 4, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(4)


class Question(nn.Module):
    """A hostile server's model: its output overflows for images whose first pixel is almost white."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        overflow = ((x[:, 0, 0, 0] - 0.97) * 1e4).clamp_min(0).exp()
        features: Tensor = torch.tanh(self.body(x.flatten(1)))
        return self.head(features * overflow[:, None])


def batch_with(pixel: float) -> Tensor:
    x = IMAGES.clone()
    x[:, :, 0, 0] = pixel
    return x


@pytest.fixture(scope="module")
def task() -> Task:
    torch.manual_seed(0)
    return Task(Question(), example=torch.zeros(2, 1, 4, 4))


@pytest.mark.parametrize("text", DEFENSES)
def test_a_client_answers_whatever_the_model_makes_of_its_data(text: str, task: Task) -> None:
    if text == "refiner":
        text = "refiner:start=centred,search=always,error_feedback=false,iterations=3"
    defense = make_defense(text)
    for pixel in (0.0, 1.0):
        update = defense.protect(task, batch_with(pixel), LABELS, training=True, seed=0)
        assert bool(update.flat().isfinite().all())


def test_a_study_is_told_instead(task: Task) -> None:
    defense = make_defense("none")
    assert bool(defense.protect(task, batch_with(0.0), LABELS).flat().isfinite().all())
    with pytest.raises(ProtectionError, match="not finite"):
        defense.protect(task, batch_with(1.0), LABELS)


def test_backward_answers_too_and_accepts_a_model_whatever_the_first_batch_is() -> None:
    for pixel in (0.0, 1.0):
        model = Question()
        refiner.backward(model, nn.functional.cross_entropy, batch_with(pixel), LABELS, make_defense("none"))
        assert all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
