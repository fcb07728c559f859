"""The search's own precision."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from refiner.core import Task, flatten, gradients
from refiner.defenses import Refiner
from refiner.defenses.refine import craft
from refiner.defenses.refine.craft import _halved
from refiner.errors import ProtectionError
from refiner.models import LeNet


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


@pytest.mark.parametrize("size", [1, 16])
def test_an_upload_is_held_against_the_real_gradient_in_full_precision(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding must not pass for noise: here TF32 is off by a twentieth, and the upload by nothing."""

    def rounded(*given: Any, **how: Any) -> dict[str, Tensor]:
        share = 0.05 if torch.backends.cudnn.allow_tf32 else 0.0
        return {name: g + share * g.abs().mean() for name, g in gradients(*given, **how).items()}

    monkeypatch.setattr(craft, "gradients", rounded)
    x, y = torch.rand(1, size, 3, 32, 32), torch.arange(size)[None] % 10
    bare = Refiner(start="blend", alpha=0, iterations=0)
    with pytest.raises(ProtectionError, match="all but the real gradient"):
        bare.protect(Task(LeNet(), example=x[0]), x, y)
