"""The search's own precision."""

import torch

from refiner.core import Task, flatten, gradients
from refiner.defenses.refine.craft import _halved
from refiner.models import build


def test_a_gradient_in_half_precision_is_the_same_gradient() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(1, 4, 3, 32, 32), torch.randint(10, (1, 4))
    task = Task(build("resnet10"), example=x[0])
    exact = flatten(gradients(task, x, y))
    half = _halved(task, task.parameters(), y)(x)
    assert half.dtype == torch.float32
    assert float((half - exact).norm() / exact.norm()) < 0.1
