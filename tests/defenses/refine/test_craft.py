"""The search's own precision."""

import torch
from torch import nn

from refiner.core import Task, flatten, gradients
from refiner.defenses.refine.craft import _halved


def test_a_gradient_in_half_precision_is_the_same_gradient() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(1, 4, 3, 8, 8), torch.randint(10, (1, 4))
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(4, 8),
        nn.GELU(),
        nn.Conv2d(8, 8, 3),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    task = Task(model, example=x[0])
    exact = flatten(gradients(task, x, y))
    half = _halved(task, task.parameters(), y)(x)
    assert half.dtype == torch.float32
    assert 0 < float((half - exact).norm() / exact.norm()) < 0.03
