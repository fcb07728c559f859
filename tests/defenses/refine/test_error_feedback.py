"""Error feedback: the identity that makes errors cancel, its state, and when it needs one."""

from typing import Any

import pytest
import torch
from torch import Tensor

from refiner.core import Task
from refiner.defenses import NoDefense, Refiner
from refiner.defenses.refine.error_feedback import ErrorFeedback
from refiner.defenses.refine.refiner_state import RefinerState
from refiner.errors import ProtectionError, SettingError

SETTINGS: dict[str, Any] = {"search": "always", "iterations": 6, "secret": b"s" * 32}


@pytest.fixture
def batches(images: tuple[Tensor, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Three batches of four images for each of two clients."""
    x, y = images[0][:24, 0].view(3, 2, 4, 3, 32, 32), images[1][:24, 0].view(3, 2, 4)
    return list(zip(x, y, strict=True))


def test_the_sum_of_uploads_and_the_residual_is_the_sum_of_real_gradients(
    task: Task, batches: list[tuple[Tensor, Tensor]]
) -> None:
    defense = Refiner(**SETTINGS)
    state = defense.init_state()
    total = torch.zeros(2, task.size, dtype=torch.float64)
    for x, y in batches:
        total += NoDefense().protect(task, x, y).flat() - defense.protect(task, x, y, state=state).flat()
    residuals = state.state_dict()["residuals"]
    torch.testing.assert_close(residuals, total)
    assert (residuals.norm(dim=1) > 1e-3).all()


def test_the_first_upload_is_that_without_feedback(task: Task, batches: list[tuple[Tensor, Tensor]]) -> None:
    first, second = batches[:2]
    plain = Refiner(**SETTINGS, error_feedback=False)
    defense = Refiner(**SETTINGS)
    state = defense.init_state()
    assert torch.equal(defense.protect(task, *first, state=state).flat(), plain.protect(task, *first).flat())
    assert not torch.equal(
        defense.protect(task, *second, state=state).flat(), plain.protect(task, *second).flat()
    )


def test_clients_have_their_own_residuals(task: Task, batches: list[tuple[Tensor, Tensor]]) -> None:
    """Two clients in one call, in the other order the next time, upload what each would alone."""
    defense, (first, second, _) = Refiner(**SETTINGS), batches
    ids = torch.arange(8).view(2, 4)
    state = defense.init_state()
    defense.protect_checked(task, *first, ids=ids, state=state, clients=[7, 3])
    swapped = tuple(t.flip(0) for t in second)
    together = defense.protect_checked(task, *swapped, ids=ids, state=state, clients=[3, 7]).flat()
    for client in (0, 1):
        own = defense.init_state()
        defense.protect(task, first[0][client], first[1][client], state=own)
        alone = defense.protect(task, second[0][client], second[1][client], state=own).flat()[0]
        torch.testing.assert_close(together[1 - client], alone)


def test_a_state_can_be_saved_and_loaded(task: Task, batches: list[tuple[Tensor, Tensor]]) -> None:
    defense = Refiner(**SETTINGS)
    state, loaded = defense.init_state(), defense.init_state()
    assert state.state_dict() == {}
    defense.protect(task, *batches[0], state=state)
    loaded.load_state_dict({name: value.clone() for name, value in state.state_dict().items()})
    again, resumed = (defense.protect(task, *batches[1], state=s).flat() for s in (state, loaded))
    assert torch.equal(again, resumed)
    loaded.load_state_dict({})
    assert loaded.state_dict() == {}


def test_a_search_without_a_state_raises(task: Task, batches: list[tuple[Tensor, Tensor]]) -> None:
    for state, kind in ((None, "NoneType"), (NoDefense().init_state(), "DefenseState")):
        with pytest.raises(SettingError, match=r"defense\.init_state\(\)") as raised:
            Refiner(**SETTINGS).protect(task, *batches[0], state=state)
        assert str(raised.value).startswith(f"state = {kind}: error_feedback = True needs a state")
        assert "\n" not in str(raised.value) and raised.value.field == "state"


def test_small_batches_and_seeded_studies_need_no_state(
    task: Task, batches: list[tuple[Tensor, Tensor]]
) -> None:
    state = Refiner().init_state()
    Refiner().protect(task, *batches[0])
    Refiner().protect(task, *batches[0], state=state)
    Refiner(**SETTINGS).protect(task, *batches[0], seed=0, state=state)
    assert state.state_dict() == {}


def test_a_failed_round_and_another_model_do_not_affect_later_ones(
    task: Task, batches: list[tuple[Tensor, Tensor]]
) -> None:
    defense = Refiner(**SETTINGS)
    state = defense.init_state()
    defense.protect(task, *batches[0], state=state)
    before = state.state_dict()["residuals"].clone()
    weight = task.model.get_parameter(task.names[0])
    original = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(torch.inf)
    try:
        with pytest.raises(ProtectionError):
            defense.protect(task, *batches[1], state=state)
    finally:
        with torch.no_grad():
            weight.copy_(original)
    assert torch.equal(state.state_dict()["residuals"], before)
    assert isinstance(state, RefinerState)
    assert not state.feedback.residuals([0], like=torch.zeros(1, 5)).any()


def test_the_residual_is_not_part_of_an_update(task: Task, batches: list[tuple[Tensor, Tensor]]) -> None:
    defense = Refiner(**SETTINGS)
    update = defense.protect(task, *batches[0], state=defense.init_state())
    assert update.tensors.keys() == set(task.names)
    assert not any(isinstance(value, Tensor) for value in update.settings.values())


def test_residuals_of_another_model_are_dropped() -> None:
    """A client's folder may hold the state of an earlier training of another model."""
    state = ErrorFeedback()
    state.store([1], torch.ones(1, 5))
    state.store([0], torch.ones(1, 3))
    assert state.state_dict()["clients"].tolist() == [0]
    restored = ErrorFeedback()
    restored.load_state_dict(state.state_dict())
    assert torch.equal(restored.residuals([0, 1], torch.zeros(2, 3)), torch.tensor([[1.0] * 3, [0.0] * 3]))
