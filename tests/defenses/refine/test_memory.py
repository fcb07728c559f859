"""The warm start: half the iterations from what is remembered; its memory, the oldest forgotten first."""

from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from refiner.core import Task
from refiner.defenses import Refiner
from refiner.defenses.refine.memory import Memory


@given(
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=8),
    told=st.booleans(),
)
def test_recalls_the_last_value_of_the_most_recent_samples(batches: list[list[int]], told: bool) -> None:
    memory = Memory(capacity=4)
    model: dict[int, float] = {}
    count = 0.0
    for batch in batches:
        values = torch.arange(count, count + len(batch))[:, None]
        count += len(batch)
        found = memory.find(torch.tensor(batch), like=values)
        assert found.held == sum(sample in model for sample in batch)
        # On a GPU, two values for one slot would leave it to chance which is kept.
        distinct = len(set(batch)) == len(batch)
        assert (found.slots is not None) == (distinct and found.held == len(batch))
        memory.store(torch.tensor(batch), values, found if told else None)
        for sample, value in zip(batch, values[:, 0].tolist(), strict=True):
            model.pop(sample, None)
            model[sample] = value
            while len(model) > 4:
                model.pop(next(iter(model)))
    expect(memory, model)
    state, again = memory.state(), Memory(capacity=4)
    assert state["ids"].tolist() == list(model)
    again.restore(state)
    expect(again, model)


def expect(memory: Memory, model: dict[int, float]) -> None:
    found = memory.find(torch.arange(10), like=torch.zeros(10, 1))
    values = found.values
    assert {i for i in range(10) if found.known[i]} == set(model)
    assert all(values[i].item() == value for i, value in model.items())
    assert len(memory) == len(model)


ONE = torch.tensor([1])


def test_other_shapes_start_anew() -> None:
    memory = Memory(capacity=2)
    memory.store(ONE, torch.zeros(1, 3))
    memory.store(ONE + 1, torch.zeros(1, 4))
    assert memory.find(torch.tensor([1, 2]), like=torch.zeros(2, 4)).known.tolist() == [False, True]


def test_nothing_is_known_to_an_empty_memory_or_in_another_shape_or_type() -> None:
    memory = Memory(capacity=2)
    assert not memory.find(ONE, like=torch.zeros(1, 3)).known.any()
    memory.store(ONE, torch.zeros(1, 3))
    assert memory.find(ONE, like=torch.zeros(1, 3)).known.all()
    assert not memory.find(ONE, like=torch.zeros(1, 4)).known.any()
    assert not memory.find(ONE, like=torch.zeros(1, 3).double()).known.any()


def test_what_was_found_before_others_came_is_looked_up_again() -> None:
    memory = Memory(capacity=2)
    memory.store(torch.tensor([1, 2]), torch.tensor([[1.0], [2.0]]))
    found = memory.find(ONE, like=torch.zeros(1, 1))
    memory.store(ONE + 2, torch.tensor([[3.0]]))  # in the place of 1
    memory.store(ONE, torch.tensor([[9.0]]), found)
    now = memory.find(torch.tensor([1, 2, 3]), like=torch.zeros(3, 1))
    assert now.known.tolist() == [True, False, True]
    assert now.values[[0, 2]].flatten().tolist() == [9, 3]


def test_half_a_change_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory(capacity=4)
    memory.store(torch.tensor([1, 2]), torch.tensor([[1.0], [2.0]]))

    def full(*_: object) -> NoReturn:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(memory, "_renew", full)
        with pytest.raises(torch.OutOfMemoryError):
            memory.store(torch.tensor([2, 3]), torch.tensor([[4.0], [5.0]]))
    # New samples had a place already, but no values.
    assert len(memory) == 0 and memory.state() == {}
    memory.store(ONE, torch.tensor([[7.0]]))
    assert memory.find(ONE, like=torch.zeros(1, 1)).values.tolist() == [[7]]


# Plain descent remembers nothing but where it is: steps of two rounds are steps of one long search.
DESCENT: dict[str, Any] = {"solver": "descent", "step": 0.1, "beta": 0.0, "floor": 0.0, "secret": b"s" * 32}


def after(steps: int, task: Task, x: Tensor, y: Tensor) -> Tensor:
    return Refiner(iterations=steps, warm_start=False, **DESCENT).refine(task, x, y)[0]


@pytest.mark.parametrize(("iterations", "half"), [(5, 3), (4, 2)])
def test_a_known_batch_goes_on_for_half_the_iterations(
    task: Task, images: tuple[Tensor, Tensor], iterations: int, half: int
) -> None:
    x, y = images[0][:2], images[1][:2]
    warm = Refiner(iterations=iterations, warm_start=True, **DESCENT)
    for steps in (iterations, iterations + half):
        expected = after(steps, task, x, y)
        assert (expected - after(steps + 1, task, x, y)).abs().max() > 1e-4
        torch.testing.assert_close(warm.refine(task, x, y)[0], expected, rtol=1e-9, atol=1e-9)


def test_a_batch_known_in_part_goes_on_for_all_iterations(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images[0][:3], images[1][:3]
    warm = Refiner(iterations=3, warm_start=True, **DESCENT)
    warm.refine(task, x[:2], y[:2])
    found, _ = warm.refine(task, x, y)
    torch.testing.assert_close(found[:2], after(6, task, x[:2], y[:2]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found[2:], after(3, task, x[2:], y[2:]), rtol=1e-9, atol=1e-9)


def test_without_a_warm_start_every_round_is_the_same(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images[0][:2], images[1][:2]
    cold = Refiner(iterations=2, warm_start=False, **DESCENT)
    assert torch.equal(cold.refine(task, x, y)[0], cold.refine(task, x, y)[0])
