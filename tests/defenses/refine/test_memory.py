"""The warm start's memory: bounded, the oldest forgotten first."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from refiner.defenses.refine.memory import Memory


@given(
    batches=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=8),
    renewed=st.booleans(),
)
def test_recalls_the_last_value_of_the_most_recent_samples(batches: list[list[int]], renewed: bool) -> None:
    memory = Memory(capacity=4)
    model: dict[int, float] = {}
    count = 0.0
    for batch in batches:
        values = torch.arange(count, count + len(batch))[:, None]
        count += len(batch)
        found = memory.find(torch.tensor(batch), like=values)
        hint = found if renewed and found.known.all() and len(set(batch)) == len(batch) else None
        memory.store(torch.tensor(batch), values, hint)
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
    values = memory.recall(found)
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
    assert memory.recall(now)[[0, 2]].flatten().tolist() == [9, 3]
