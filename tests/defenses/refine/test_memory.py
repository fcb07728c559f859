"""The warm start: its memory of robust data, and half the iterations for a known batch."""

from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from refiner.core import Task
from refiner.defenses import DefenseState, NoDefense, Refiner
from refiner.defenses.refine.memory import RobustDataMemory
from refiner.errors import SettingError


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
DESCENT: dict[str, Any] = {
    "solver": "descent",
    "start": "centred",
    "search": "always",
    "error_feedback": False,
    "step": 0.1,
    "secret": b"s" * 32,
}


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


WARM: dict[str, Any] = {"start": "centred", "alpha": 2.2, "search": "always", "error_feedback": False}


def test_a_warm_start_continues_from_earlier_rounds(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images[0][:8], images[1][:8]
    real = NoDefense().protect(task, x, y).flat()
    for ids in (torch.arange(8)[:, None], None):
        warm = Refiner(**WARM, iterations=6, warm_start=True)
        state = warm.init_state()
        first, second = (warm.protect(task, x, y, ids=ids, state=state).flat() for _ in range(2))
        assert (second - real).norm(dim=1).mean() < 0.97 * (first - real).norm(dim=1).mean()


def test_a_seeded_call_does_not_change_the_state(task: Task, images: tuple[Tensor, Tensor]) -> None:
    warm = Refiner(**WARM, iterations=1, warm_start=True)
    state = warm.init_state()
    warm.protect(task, *images, seed=0, state=state)
    assert state.state_dict() == {}


def test_an_id_with_a_changed_image_is_a_new_sample(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images[0][:8], images[1][:8]
    ids = torch.arange(8)[:, None]
    warm = Refiner(**WARM, iterations=2, secret=b"s" * 32, warm_start=True)
    state = warm.init_state()
    warm.protect(task, x, y, ids=ids, state=state)
    with pytest.warns(UserWarning, match="augmented copies get noise of their own"):
        after = warm.protect(task, x.flip(-1), y, ids=ids, state=state).flat()
    fresh = Refiner(**WARM, iterations=2, secret=b"s" * 32).protect(task, x.flip(-1), y, ids=ids).flat()
    assert torch.equal(after, fresh)


def test_a_warm_start_without_a_state_raises(task: Task, images: tuple[Tensor, Tensor]) -> None:
    warm = Refiner(**WARM, iterations=1, warm_start=True)
    for state, kind in ((None, "NoneType"), (NoDefense().init_state(), "DefenseState")):
        with pytest.raises(SettingError, match=r"defense\.init_state\(\)") as raised:
            warm.protect(task, *images, state=state)
        assert str(raised.value).startswith(f"state = {kind}: warm_start = True needs a state")
        assert "\n" not in str(raised.value) and raised.value.field == "state"


def test_a_state_can_be_saved_and_loaded(task: Task, images: tuple[Tensor, Tensor]) -> None:
    warm = Refiner(**WARM, iterations=2, secret=b"s" * 32, warm_start=True)
    state, loaded = warm.init_state(), warm.init_state()
    warm.protect(task, *images, state=state)
    loaded.load_state_dict({name: value.clone() for name, value in state.state_dict().items()})
    again, resumed = (warm.protect(task, *images, state=s).flat() for s in (state, loaded))
    assert torch.equal(again, resumed)


def test_the_state_has_room_for_all_samples_of_a_training() -> None:
    warm = Refiner(**WARM, warm_start=True, memory_size=5)
    assert warm.init_state().capacity == 5  # type: ignore[attr-defined]
    assert warm.init_state(samples=8).capacity == 8  # type: ignore[attr-defined]


def test_two_states_of_one_refiner_are_independent(task: Task, images: tuple[Tensor, Tensor]) -> None:
    warm = Refiner(**WARM, iterations=2, warm_start=True)
    first, second = (warm.protect(task, *images, state=warm.init_state()).flat() for _ in range(2))
    assert torch.equal(first, second)
