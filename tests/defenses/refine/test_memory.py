"""The warm start: its memory of robust data, and half the iterations for a known batch."""

from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from refiner.core import Task
from refiner.defenses import DefenseState, Refiner
from refiner.defenses.refine.memory import RobustDataMemory


@given(
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=8),
    with_lookup=st.booleans(),
)
def test_the_memory_keeps_the_last_values_of_the_most_recent_samples(
    batches: list[list[int]], with_lookup: bool
) -> None:
    memory = RobustDataMemory(capacity=4)
    model: dict[int, float] = {}
    count = 0.0
    for batch in batches:
        values = torch.arange(count, count + len(batch))[:, None]
        count += len(batch)
        lookup = memory.lookup(torch.tensor(batch), like=values)
        assert lookup.hits == sum(sample in model for sample in batch)
        # On a GPU it would be random which of two values for one slot is kept.
        distinct = len(set(batch)) == len(batch)
        assert (lookup.slots is not None) == (distinct and lookup.hits == len(batch))
        memory.store(torch.tensor(batch), values, lookup if with_lookup else None)
        for sample, value in zip(batch, values[:, 0].tolist(), strict=True):
            model.pop(sample, None)
            model[sample] = value
            while len(model) > 4:
                model.pop(next(iter(model)))
    assert_contains(memory, model)
    state, again = memory.state_dict(), RobustDataMemory(capacity=4)
    assert state["ids"].tolist() == list(model)
    again.load_state_dict(state)
    assert_contains(again, model)


def assert_contains(memory: RobustDataMemory, model: dict[int, float]) -> None:
    lookup = memory.lookup(torch.arange(10), like=torch.zeros(10, 1))
    values = lookup.values
    assert {i for i in range(10) if lookup.stored[i]} == set(model)
    assert all(values[i].item() == value for i, value in model.items())
    assert len(memory) == len(model)


ONE = torch.tensor([1])


def test_values_of_another_shape_clear_the_memory() -> None:
    memory = RobustDataMemory(capacity=2)
    memory.store(ONE, torch.zeros(1, 3))
    memory.store(ONE + 1, torch.zeros(1, 4))
    assert memory.lookup(torch.tensor([1, 2]), like=torch.zeros(2, 4)).stored.tolist() == [False, True]


def test_lookups_of_another_shape_or_dtype_find_nothing() -> None:
    memory = RobustDataMemory(capacity=2)
    assert not memory.lookup(ONE, like=torch.zeros(1, 3)).stored.any()
    memory.store(ONE, torch.zeros(1, 3))
    assert memory.lookup(ONE, like=torch.zeros(1, 3)).stored.all()
    assert not memory.lookup(ONE, like=torch.zeros(1, 4)).stored.any()
    assert not memory.lookup(ONE, like=torch.zeros(1, 3).double()).stored.any()


def test_an_outdated_lookup_is_not_used() -> None:
    memory = RobustDataMemory(capacity=2)
    memory.store(torch.tensor([1, 2]), torch.tensor([[1.0], [2.0]]))
    lookup = memory.lookup(ONE, like=torch.zeros(1, 1))
    memory.store(ONE + 2, torch.tensor([[3.0]]))  # takes the slot of 1
    memory.store(ONE, torch.tensor([[9.0]]), lookup)
    result = memory.lookup(torch.tensor([1, 2, 3]), like=torch.zeros(3, 1))
    assert result.stored.tolist() == [True, False, True]
    assert result.values[[0, 2]].flatten().tolist() == [9, 3]


def test_a_failed_store_clears_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = RobustDataMemory(capacity=4)
    memory.store(torch.tensor([1, 2]), torch.tensor([[1.0], [2.0]]))

    def out_of_memory(*_: object) -> NoReturn:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(memory, "_overwrite", out_of_memory)
        with pytest.raises(torch.OutOfMemoryError):
            memory.store(torch.tensor([2, 3]), torch.tensor([[4.0], [5.0]]))
    # New samples had slots already, but no values.
    assert len(memory) == 0 and memory.state_dict() == {}
    memory.store(ONE, torch.tensor([[7.0]]))
    assert memory.lookup(ONE, like=torch.zeros(1, 1)).values.tolist() == [[7]]


# Plain descent has no state but its position: the steps of two rounds are those of one long search.
DESCENT: dict[str, Any] = {"solver": "descent", "step": 0.1, "beta": 0.0, "floor": 0.0, "secret": b"s" * 32}


def after(steps: int, task: Task, x: Tensor, y: Tensor) -> Tensor:
    return robust_data(Refiner(iterations=steps, warm_start=False, **DESCENT), task, x, y)


def robust_data(
    defense: Refiner, task: Task, x: Tensor, y: Tensor, state: DefenseState | None = None
) -> Tensor:
    robust = defense.protection(task, x, y, state=state).robust
    assert robust is not None
    return robust


@pytest.mark.parametrize(("iterations", "half"), [(5, 3), (4, 2)])
def test_a_known_batch_continues_for_half_the_iterations(
    task: Task, images: tuple[Tensor, Tensor], iterations: int, half: int
) -> None:
    x, y = images[0][:2], images[1][:2]
    warm = Refiner(iterations=iterations, warm_start=True, **DESCENT)
    state = warm.init_state()
    for steps in (iterations, iterations + half):
        expected = after(steps, task, x, y)
        assert (expected - after(steps + 1, task, x, y)).abs().max() > 1e-4
        torch.testing.assert_close(robust_data(warm, task, x, y, state), expected, rtol=1e-9, atol=1e-9)


def test_a_partly_known_batch_continues_for_all_iterations(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images[0][:3], images[1][:3]
    warm = Refiner(iterations=3, warm_start=True, **DESCENT)
    state = warm.init_state()
    warm.protect(task, x[:2], y[:2], state=state)
    robust = robust_data(warm, task, x, y, state)
    torch.testing.assert_close(robust[:2], after(6, task, x[:2], y[:2]), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(robust[2:], after(3, task, x[2:], y[2:]), rtol=1e-9, atol=1e-9)


def test_every_round_is_the_same_without_a_warm_start(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images[0][:2], images[1][:2]
    cold = Refiner(iterations=2, warm_start=False, **DESCENT)
    assert torch.equal(robust_data(cold, task, x, y), robust_data(cold, task, x, y))
