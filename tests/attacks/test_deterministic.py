"""The same bits every time: asked for around the whole attack, and kept by every attack on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from tests.attacks.conftest import ALL, PAINTER, QUICK, SIDE
from torch import Tensor

from refiner.attacks import Observation, base
from refiner.core import Task
from refiner.defenses import NoDefense
from refiner.models import build

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda.is_available() is False")


@pytest.mark.parametrize("wanted", [True, False])
def test_it_is_asked_for_around_the_attack(
    wanted: bool, seen: Observation, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[object] = []

    @contextmanager
    def noted(asked: bool, device: torch.device) -> Iterator[None]:
        told.append((asked, device.type))
        yield
        told.append("left")

    monkeypatch.setattr(base, "repeatable", noted)
    attack = replace(QUICK["inverting"], iterations=1)  # type: ignore[type-var]
    attack.reconstruct(seen, deterministic=wanted, on_progress=lambda done, total: told.append("attacked"))
    assert told == [(wanted, "cpu"), "attacked", "left"]


@needs_cuda
@pytest.mark.parametrize("model", ["lenet", "resnet10"])
@pytest.mark.parametrize("name", QUICK)
def test_same_bits_on_a_gpu(
    name: str, model: str, victims: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(PAINTER, "colours", PAINTER.colours.cuda())
    x, y = (t.cuda() for t in victims)
    if name == "ggl":
        # Enlarging by bilinear weights, as the tests' generator does, has no such algorithm.
        monkeypatch.setattr(PAINTER, "forward", _nearest)
    task = Task(build(model, input_shape=(3, SIDE, SIDE)).cuda(), example=x[0])
    seen = Observation.of(task, NoDefense().protect(task, x, y))
    attack = replace(QUICK[name], iterations=1 if "dlg" in name else 30)  # type: ignore[type-var]
    one, again = (attack.reconstruct(seen, threat=ALL, chunk=3, deterministic=True) for _ in range(2))
    assert torch.equal(one.x, again.x) and torch.equal(one.objective, again.objective)
    assert torch.backends.cudnn.benchmark and not torch.are_deterministic_algorithms_enabled()


def _nearest(z: Tensor, y: Tensor) -> Tensor:
    coarse = torch.sigmoid((z @ PAINTER.colours).view(-1, 3, 4, 4))
    return torch.nn.functional.interpolate(coarse, size=SIDE, mode="nearest")
