"""`deterministic`: the attack uses deterministic algorithms, and results on a GPU are bit-identical."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from tests.attacks.conftest import ALL, GENERATOR, QUICK, SIDE
from torch import Tensor

from refiner.attacks import Observation, base
from refiner.core import Task
from refiner.defenses import NoDefense
from refiner.models import make_model

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda.is_available() is False")


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_attack_runs_inside_the_deterministic_context(
    deterministic: bool, observation: Observation, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[object] = []

    @contextmanager
    def record(enabled: bool, device: torch.device) -> Iterator[None]:
        events.append((enabled, device.type))
        yield
        events.append("left")

    monkeypatch.setattr(base, "deterministic_algorithms", record)
    attack = replace(QUICK["inverting"], iterations=1)  # type: ignore[type-var]
    attack.reconstruct(
        observation, deterministic=deterministic, on_progress=lambda done, total: events.append("attacked")
    )
    assert events == [(deterministic, "cpu"), "attacked", "left"]


@needs_cuda
@pytest.mark.parametrize("model", ["lenet", "resnet10"])
@pytest.mark.parametrize("name", QUICK)
def test_results_on_a_gpu_are_bit_identical(
    name: str, model: str, victims: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(GENERATOR, "colours", GENERATOR.colours.cuda())
    x, y = (t.cuda() for t in victims)
    if name == "ggl":
        # Bilinear enlarging, which the tests' generator uses, has no deterministic algorithm.
        monkeypatch.setattr(GENERATOR, "forward", _forward_nearest)
    task = Task(make_model(model, input_shape=(3, SIDE, SIDE)).cuda(), example=x[0])
    observation = Observation.of(task, NoDefense().protect(task, x, y))
    attack = replace(QUICK[name], iterations=1 if "dlg" in name else 30)  # type: ignore[type-var]
    first, repeated = (
        attack.reconstruct(observation, threat=ALL, chunk=3, deterministic=True) for _ in range(2)
    )
    assert torch.equal(first.x, repeated.x) and torch.equal(first.objective, repeated.objective)
    assert torch.backends.cudnn.benchmark and not torch.are_deterministic_algorithms_enabled()


def _forward_nearest(z: Tensor, y: Tensor) -> Tensor:
    coarse = torch.sigmoid((z @ GENERATOR.colours).view(-1, 3, 4, 4))
    return torch.nn.functional.interpolate(coarse, size=SIDE, mode="nearest")
