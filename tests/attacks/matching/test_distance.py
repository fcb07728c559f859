"""Distances against closed forms, over all layers and over some."""

import pytest
import torch
from torch import nn

from refiner import LeNet, Task
from refiner.attacks import InvertingGradients, make_attack
from refiner.attacks.matching.distance import Distance
from refiner.core.gradients import flatten, gradients
from refiner.errors import SettingError


@pytest.fixture(scope="module")
def task() -> Task:
    return Task(LeNet(), example=torch.rand(2, 3, 32, 32))


@pytest.mark.parametrize("kind", ["euclidean", "relative", "cosine"])
def test_an_ignored_layer_has_no_effect(kind: str, task: Task) -> None:
    observed, gradient = ({n: torch.randn(2, *s) for n, s in task.shapes.items()} for _ in range(2))
    body = [{n: g for n, g in each.items() if not n.startswith("head")} for each in (gradient, observed)]
    expected = Distance(kind).for_task(task)(*map(flatten, body))
    distance = Distance(kind, without="head").for_task(task)
    torch.testing.assert_close(distance(flatten(gradient), flatten(observed)), expected)
    other = {**observed, "head.weight": torch.zeros(2, 10, 768), "head.bias": torch.full((2, 10), 9.0)}
    torch.testing.assert_close(distance(flatten(gradient), flatten(other)), expected)


def test_layer_weights_with_an_ignored_layer(task: Task) -> None:
    g = {name: torch.ones(1, *shape) for name, shape in task.shapes.items()}
    distance = Distance("euclidean", {"head": 5.0, "body.0": 2.0}, without="head").for_task(task)
    count = sum(task.shapes[name].numel() for name in ("body.0.weight", "body.0.bias"))
    assert float(distance(flatten(g), torch.zeros(1, task.size))) == 4 * count


def test_a_layer_that_cannot_be_ignored_raises(task: Task) -> None:
    with pytest.raises(
        SettingError, match=r"^without = 'tail': expected one of body\.0, body\.2, body\.4, head$"
    ):
        InvertingGradients(without="tail").check(task)
    with pytest.raises(SettingError, match=r"^without = 1: expected the name of a layer$"):
        InvertingGradients(without=1)  # type: ignore[arg-type]
    one_layer = Task(nn.Linear(4, 3), example=torch.rand(2, 4))
    with pytest.raises(SettingError, match="at least one other layer"):
        Distance(without="").for_task(one_layer)


def test_the_ignored_layer_is_a_setting_by_name(task: Task) -> None:
    attack = make_attack("inverting:without=head,iterations=10")
    assert attack == InvertingGradients(without="head", iterations=10)
    attack.check(task)


def test_distances_match_closed_forms(task: Task) -> None:
    a, b = torch.randn(2, 3, task.size, dtype=torch.float64)
    torch.testing.assert_close(Distance("euclidean").for_task(task)(a, b), ((a - b) ** 2).sum(1))
    torch.testing.assert_close(
        Distance("relative").for_task(task)(a, b), ((a - b) ** 2).sum(1) / (b**2).sum(1)
    )
    torch.testing.assert_close(Distance("cosine").for_task(task)(a, b), 1 - torch.cosine_similarity(a, b))


def test_a_distance_over_some_layers(task: Task) -> None:
    g = gradients(task, torch.rand(3, 1, 3, 32, 32), torch.tensor([[1], [2], [3]]))
    head = torch.cat([g["head.weight"].flatten(1), g["head.bias"]], 1)
    distance = Distance("euclidean", {"head": 2.0}).for_task(task)(flatten(g), torch.zeros(3, task.size))
    torch.testing.assert_close(distance, 4 * head.square().sum(1))
    with pytest.raises(SettingError, match="layers = 'tail': expected one of"):
        Distance("cosine", {"tail": 1.0}).for_task(task)
    with pytest.raises(SettingError, match="distance"):
        Distance("manhattan")


def test_the_cosine_distance_is_differentiable_at_zero(task: Task) -> None:
    g = torch.zeros(1, task.size, requires_grad=True)
    Distance("cosine").for_task(task)(g, torch.ones(1, task.size)).sum().backward()
    assert g.grad is not None and bool(g.grad.isfinite().all())
