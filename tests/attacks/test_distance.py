"""A layer can be left out of what an attack matches."""

import pytest
import torch
from torch import nn

from refiner import LeNet, Task
from refiner.attacks import InvertingGradients, make_attack
from refiner.attacks.distance import Distance
from refiner.core.gradients import flatten
from refiner.errors import SettingError


@pytest.fixture(scope="module")
def task() -> Task:
    return Task(LeNet(), example=torch.rand(2, 3, 32, 32))


@pytest.mark.parametrize("kind", ["euclidean", "relative", "cosine"])
def test_without_a_layer(kind: str, task: Task) -> None:
    """As if it were not there: whatever it holds, on either side."""
    seen, found = ({n: torch.randn(2, *s) for n, s in task.shapes.items()} for _ in range(2))
    body = [{n: g for n, g in each.items() if not n.startswith("head")} for each in (found, seen)]
    wanted = Distance(kind).over(task)(*map(flatten, body))
    measure = Distance(kind, without="head").over(task)
    torch.testing.assert_close(measure(flatten(found), flatten(seen)), wanted)
    other = {**seen, "head.weight": torch.zeros(2, 10, 768), "head.bias": torch.full((2, 10), 9.0)}
    torch.testing.assert_close(measure(flatten(found), flatten(other)), wanted)


def test_weights_and_a_layer_left_out(task: Task) -> None:
    g = {name: torch.ones(1, *shape) for name, shape in task.shapes.items()}
    measure = Distance("euclidean", {"head": 5.0, "body.0": 2.0}, without="head").over(task)
    count = sum(task.shapes[name].numel() for name in ("body.0.weight", "body.0.bias"))
    assert float(measure(flatten(g), torch.zeros(1, task.size))) == 4 * count


def test_what_can_not_be_left_out_is_named(task: Task) -> None:
    with pytest.raises(SettingError, match=r"^without: 'tail' is none of body\.0, body\.2, body\.4, head$"):
        InvertingGradients(without="tail").check(task)
    with pytest.raises(SettingError, match=r"^without = 1: expected the name of a layer$"):
        InvertingGradients(without=1)  # type: ignore[arg-type]
    alone = Task(nn.Linear(4, 3), example=torch.rand(2, 4))
    with pytest.raises(SettingError, match="no layer is left"):
        Distance(without="").over(alone)


def test_the_command_line_names_it(task: Task) -> None:
    attack = make_attack("inverting:without=head,iterations=10")
    assert attack == InvertingGradients(without="head", iterations=10)
    attack.check(task)
