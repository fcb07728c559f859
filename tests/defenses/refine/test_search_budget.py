"""The budget of searched uploads: what a spent sample still reveals, and that it is not forgotten."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from refiner.core import Task
from refiner.defenses import Refiner
from refiner.defenses.refine.search_counts import SearchCounts
from refiner.errors import DataError, SettingError

pytestmark = pytest.mark.hostile
SETTINGS: dict[str, Any] = dict(search="always", iterations=6, secret=b"s" * 32, error_feedback=False)


@pytest.fixture
def batch(images: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Four images of one client."""
    return images[0][:4, 0][None], images[1][:4, 0][None]


def test_without_budget_left_an_upload_is_that_of_the_noisy_images(
    task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    defense = Refiner(search_budget=2, **SETTINGS)
    state, never = (
        defense.init_state(),
        Refiner(search="never", secret=SETTINGS["secret"], error_feedback=False),
    )
    noisy = never.protect(task, *batch).flat()
    searched = [defense.protect(task, *batch, state=state).flat() for _ in range(4)]
    assert torch.equal(searched[0], searched[1]) and not torch.equal(searched[1], noisy)
    assert torch.equal(searched[2], noisy) and torch.equal(searched[3], noisy)


@pytest.mark.parametrize("start", ["natural", "centred"])
def test_an_upload_depends_on_a_spent_sample_only_through_its_noisy_self(
    task: Task, batch: tuple[Tensor, Tensor], start: str
) -> None:
    x, y = batch
    defense = Refiner(search_budget=1, start=start, radius=None, **SETTINGS)
    noisy, ids = defense.noisy(x[0])[None], torch.arange(4)[None]

    def second_upload(other: Tensor) -> Tensor:
        state = defense.init_state()
        # Samples 0 and 1 are spent by a first upload; 2 and 3 are new in the second.
        defense.protect(task, x[:, :2], y[:, :2], ids=ids[:, :2], noisy=noisy[:, :2], state=state)
        return defense.protect(task, other, y, ids=ids, noisy=noisy, state=state).flat()

    spent, new = x.clone(), x.clone()
    spent[:, :2] = 1 - x[:, :2]
    new[:, 2:] = 1 - x[:, 2:]
    assert torch.equal(second_upload(spent), second_upload(x))
    assert not torch.equal(second_upload(new), second_upload(x))


def test_the_budget_survives_a_restart_and_another_training(
    task: Task, batch: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    defense = Refiner(search_budget=1, **SETTINGS)
    state, loaded = defense.init_state(), defense.init_state()
    defense.protect(task, *batch, state=state)
    save_file(state.state_dict(), tmp_path / "state.safetensors")
    loaded.load_state_dict(load_file(tmp_path / "state.safetensors"))
    assert loaded.state_dict()["searches"].tolist() == [1] * 4
    fresh = defense.protection(task, *batch, state=defense.init_state()).robust
    kept = defense.protection(task, *batch, state=loaded).robust
    assert fresh is not None and kept is not None
    assert torch.equal(kept[0], defense.noisy(batch[0][0])) and not torch.equal(fresh, kept)


@pytest.mark.parametrize("first", ["with ids", "without"])
def test_ids_do_not_renew_a_budget(task: Task, batch: tuple[Tensor, Tensor], first: str) -> None:
    defense, ids = Refiner(search_budget=1, **SETTINGS), torch.arange(4)[None]
    state = defense.init_state()
    for shown in (ids, None) if first == "with ids" else (None, ids):
        last = defense.protection(task, *batch, ids=shown, state=state).robust
    assert last is not None and torch.equal(last[0], defense.noisy(batch[0][0]))


def test_a_new_training_keeps_the_counts_but_not_the_residuals(
    task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    for settings, kept, renewed in (
        ({"search_budget": 1}, ["samples", "searches"], ["samples", "searches"]),
        ({"error_feedback": True}, ["clients", "residuals"], []),
    ):
        defense = Refiner(**SETTINGS | settings)
        state, next_training = defense.init_state(), defense.init_state()
        defense.protect(task, *batch, state=state)
        next_training.start_training(state.state_dict())
        assert sorted(state.state_dict()) == kept and sorted(next_training.state_dict()) == renewed
    other = defense.init_state()
    other.start_training({"ids": torch.zeros(1), "values": torch.zeros(1)})
    assert other.state_dict() == {}


def test_a_budget_and_error_feedback_contradict_each_other() -> None:
    with pytest.raises(
        SettingError, match=r"^search_budget = 1: possible only with .* error_feedback = False$"
    ):
        Refiner(search_budget=1)
    with pytest.raises(SettingError, match=r"^search_budget = 1: possible only with a search, "):
        Refiner(search_budget=1, search="never", error_feedback=False)


@given(
    uploads=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=6), max_size=8),
    budget=st.integers(0, 4),
)
def test_no_sample_is_searched_for_more_often_than_its_budget(uploads: list[list[int]], budget: int) -> None:
    counts, total = SearchCounts(), [0] * 6
    for samples in uploads:
        permitted = counts.take([torch.tensor([samples])], budget)[0].tolist()
        for sample, granted in zip(samples, permitted, strict=True):
            total[sample] += granted
    wanted = [sum(upload.count(sample) for upload in uploads) for sample in range(6)]
    assert total == [min(count, budget) for count in wanted]


def test_a_budget_without_state_or_ids_of_copies_is_one_line(
    task: Task, batch: tuple[Tensor, Tensor]
) -> None:
    defense = Refiner(search_budget=3, **SETTINGS)
    with pytest.raises(SettingError, match=r"^state = NoneType: search_budget = 3 needs a state; [^\n]*$"):
        defense.protect(task, *batch)
    noisy = defense.noisy(batch[0][0])[None]
    with pytest.raises(SettingError, match=r"^ids = None: search_budget counts by id [^\n]*$"):
        defense.protect(task, *batch, noisy=noisy, state=defense.init_state())
    with pytest.raises(DataError, match=r"^state = \['values'\]: expected clients and residuals"):
        defense.init_state().load_state_dict({"values": torch.zeros(1)})
