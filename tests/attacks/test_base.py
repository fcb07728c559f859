"""What an attacker may see: uploads that fit the model, labels that fit them, no more than is granted."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from refiner.attacks import InvertingGradients, Observation, ThreatModel
from refiner.core import Task
from refiner.core.update import seal
from refiner.defenses import NoDefense
from refiner.errors import DataError, ThreatModelError
from refiner.models import LeNet


def altered(task: Task, victims: tuple[Tensor, Tensor], change: str) -> dict[str, Tensor]:
    tensors = dict(NoDefense().protect(task, *victims).tensors)
    if change == "missing":
        del tensors["head.bias"]
    elif change == "extra":
        tensors["other.weight"] = torch.zeros(3, 2)
    else:
        tensors["head.bias"] = torch.zeros(3, 7)
    return tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("missing", "lacks head.bias"),
        ("extra", "has besides other.weight"),
        ("shape", r"head.bias has shape \[7\], expected \[10\]"),
    ],
)
def test_an_upload_of_another_model(
    change: str, message: str, task: Task, victims: tuple[Tensor, Tensor]
) -> None:
    update = seal(altered(task, victims, change), samples=1, defense="none", settings={})
    with pytest.raises(DataError, match=message):
        Observation.of(task, update)


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(3), torch.zeros(2, 1).long(), torch.full((3, 1), 10), torch.full((3, 1), -1), [1, 2, 3]],
)
def test_labels_that_do_not_fit(labels: Any, task: Task, victims: tuple[Tensor, Tensor]) -> None:
    update = NoDefense().protect(task, *victims)
    with pytest.raises(DataError, match="labels"):
        Observation.of(task, update, labels=labels)


def test_an_observation_keeps_the_models_state(task: Task, victims: tuple[Tensor, Tensor]) -> None:
    model = LeNet(input_shape=task.input_shape)
    own = Task(model, example=victims[0][0])
    seen = Observation.of(own, NoDefense().protect(own, *victims))
    before = seen.parameters["head.bias"].clone()
    with torch.no_grad():
        model.head.bias.add_(1)
    assert torch.equal(seen.parameters["head.bias"], before)


def test_observations_that_do_not_belong_together(seen: Observation, victims: tuple[Tensor, Tensor]) -> None:
    other = Task(LeNet(input_shape=seen.task.input_shape), example=victims[0][0])
    foreign = Observation.of(other, NoDefense().protect(other, *victims))
    attack = InvertingGradients(iterations=1)
    with pytest.raises(DataError, match="same task"):
        attack.reconstruct([seen, foreign])
    with pytest.raises(DataError, match="same victims"):
        attack.reconstruct([seen, replace(seen, gradient=seen.gradient[:2])])
    with pytest.raises(DataError, match="1 and of 2 samples"):
        attack.reconstruct([seen, replace(seen, samples=2)])
    with pytest.raises(DataError, match="at least one"):
        attack.reconstruct([])


def test_every_missing_grant_is_named() -> None:
    with pytest.raises(ThreatModelError, match=r"x needs generator and labels.*generator=True, labels=True"):
        ThreatModel().check({"labels", "generator"}, "x")
    ThreatModel(labels=True, generator=True).check({"labels", "generator"}, "x")
