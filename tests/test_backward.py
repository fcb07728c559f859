"""`backward` in an existing loop: adds to `.grad`, and changes nothing when it fails."""

import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import nn

import refiner
from refiner.backward import _TASKS, _TASKS_PER_MODEL
from refiner.data import load_sample
from refiner.defenses import make_defense
from refiner.models import MLP


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    sample = load_sample()
    return sample.images[:4], sample.labels[:4]


def test_without_a_defence_backward_equals_loss_backward(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model = refiner.LeNet()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for times in (1, 2):
        refiner.backward(model, nn.functional.cross_entropy, *batch, refiner.NoDefense())
        for name, p in model.named_parameters():
            assert p.grad is not None
            torch.testing.assert_close(p.grad, times * expected[name], rtol=1e-4, atol=1e-6)


@pytest.mark.processes
def test_a_model_can_be_trained_with_backward(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.manual_seed(0)
    model, loss = MLP(hidden=64), nn.functional.cross_entropy
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    defense = refiner.Refiner(search="always", radius=None, iterations=24)
    state = defense.init_state()
    before = loss(model(batch[0]), batch[1]).item()
    for _ in range(8):
        optimizer.zero_grad()
        refiner.backward(model, loss, *batch, defense, state=state)
        optimizer.step()
    assert loss(model(batch[0]), batch[1]).item() < before - 0.8


def test_frozen_parameters_get_no_grad(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model = MLP(hidden=8)
    model.body.requires_grad_(False)
    refiner.backward(model, nn.functional.cross_entropy, *batch, refiner.NoDefense())
    assert [name for name, p in model.named_parameters() if p.grad is not None] == [
        "head.weight",
        "head.bias",
    ]


def test_a_failure_changes_no_grad(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, loss = refiner.LeNet(), nn.functional.cross_entropy
    x, y = batch
    with pytest.raises(refiner.DataError, match="NaN"):
        refiner.backward(model, loss, x * torch.nan, y, refiner.Refiner())
    assert all(p.grad is None for p in model.parameters())
    refiner.backward(model, loss, x, y, refiner.NoDefense())
    before = [p.grad for p in model.parameters()]
    with torch.no_grad():
        model.head.weight.fill_(torch.inf)
    with pytest.raises(refiner.ProtectionError):
        refiner.backward(model, loss, x, y, refiner.Refiner(iterations=1))
    assert all(p.grad is grad for p, grad in zip(model.parameters(), before, strict=True))


def test_a_model_with_a_replaced_module_is_validated_again(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, loss = refiner.LeNet(), nn.functional.cross_entropy
    refiner.backward(model, loss, *batch, refiner.NoDefense())
    model.body[1] = nn.Tanh()
    model.zero_grad()
    refiner.backward(model, loss, *batch, refiner.NoDefense())
    grad = model.head.weight.grad
    assert grad is not None
    (expected,) = torch.autograd.grad(loss(model(batch[0]), batch[1]), [model.head.weight])
    torch.testing.assert_close(grad, expected, rtol=1e-4, atol=1e-6)


class Tempered(nn.Module):
    """A model with a plain number and a tensor that is not a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 32 * 32, 10)
        self.temperature = 1.0
        self.mask = torch.ones(3 * 32 * 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x.flatten(1) * self.mask) / self.temperature
        return scores


def test_a_model_with_changed_attributes_is_validated_again(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, loss = Tempered(), nn.functional.cross_entropy

    def gradient() -> torch.Tensor:
        model.zero_grad()
        return refiner.backward(model, loss, *batch, refiner.NoDefense()).update.tensors["layer.weight"][0]

    first = gradient()
    model.temperature = 4.0
    second = gradient()
    torch.testing.assert_close(
        second, torch.autograd.grad(loss(model(batch[0]), batch[1]), model.layer.weight)[0]
    )
    assert not torch.allclose(first, second)
    model.mask[:] = 0
    assert not bool(gradient().any())


def test_a_string_instead_of_a_defence_raises(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    with pytest.raises(refiner.SettingError, match="defense = str"):
        refiner.backward(refiner.LeNet(), nn.functional.cross_entropy, *batch, "refiner")  # type: ignore[arg-type]


BATCH = "expected a dense batch [B, *input] of floating-point inputs, B ≥ 1"
X, Y = torch.rand(4, 3, 32, 32), torch.zeros(4, dtype=torch.long)
WRONG: dict[str, tuple[dict[str, object], str]] = {
    "x a list": ({"x": [1]}, f"x = list: {BATCH}"),
    "x a number": ({"x": torch.tensor(1.0)}, f"x = torch.float32 []: {BATCH}"),
    "x a vector": ({"x": torch.rand(3)}, f"x = torch.float32 [3]: {BATCH}"),
    "x of no samples": ({"x": X[:0]}, f"x = torch.float32 [0, 3, 32, 32]: {BATCH}"),
    "x of bytes": ({"x": X.byte()}, f"x = torch.uint8 [4, 3, 32, 32]: {BATCH}"),
    "x sparse": ({"x": X.to_sparse()}, f"x = torch.sparse_coo torch.float32 [4, 3, 32, 32]: {BATCH}"),
    "x on another device": ({"x": X.to("meta")}, "x on meta: expected the model's device, cpu"),
    "model a function": ({"model": lambda z: z}, "model = function: expected a torch.nn.Module"),
    "model without values": (
        {"model": refiner.LeNet().to("meta")},
        "model: body.0.weight on meta: expected a device that holds values",
    ),
    "loss a list": ({"loss": [1]}, "loss = list: expected a function loss(scores, labels)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_raises_a_one_line_error_that_names_it(case: str) -> None:
    changed, message = WRONG[case]
    valid = {"model": refiner.LeNet(), "loss": nn.functional.cross_entropy, "x": X, "y": Y}
    arguments: dict[str, Any] = {**valid, "defense": refiner.NoDefense(), **changed}
    with pytest.raises(refiner.DataError) as caught:
        refiner.backward(**arguments)
    assert str(caught.value) == message


def test_in_place_changes_of_a_grad_do_not_change_the_update(
    batch: tuple[torch.Tensor, torch.Tensor],
) -> None:
    model, loss = MLP(hidden=8), nn.functional.cross_entropy
    for _ in range(2):
        update = refiner.backward(model, loss, *batch, refiner.NoDefense()).update
        before = update.flat().clone()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        assert torch.equal(update.flat(), before)


def test_a_task_can_be_passed_in_place_of_model_and_loss(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, loss = MLP(hidden=8), nn.functional.cross_entropy
    task = refiner.Task(model, example=batch[0], loss=loss)
    by_model = refiner.backward(model, loss, *batch, refiner.NoDefense())
    expected = [p.grad for p in model.parameters()]
    model.zero_grad()
    by_task = refiner.backward(task, None, *batch, refiner.NoDefense())
    assert torch.equal(by_task.update.flat(), by_model.update.flat())
    for p, grad in zip(model.parameters(), expected, strict=True):
        assert p.grad is not None and grad is not None and torch.equal(p.grad, grad)
    with pytest.raises(refiner.DataError, match=r"^loss with a Task: expected None"):
        refiner.backward(task, loss, *batch, refiner.NoDefense())  # type: ignore[call-overload]


def test_a_state_is_passed_to_the_defence(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, loss = refiner.LeNet(), nn.functional.cross_entropy
    defense = refiner.Refiner(iterations=4, search="always")
    state = defense.init_state()
    refiner.backward(model, loss, *batch, defense, state=state)
    assert state.state_dict()["residuals"].shape == (1, 15826)
    with pytest.raises(refiner.SettingError, match=r"init_state\(\)"):
        refiner.backward(model, loss, *batch, defense)


@pytest.mark.parametrize("defense", [refiner.NoDefense(), refiner.Refiner(iterations=1)])
def test_a_model_is_freed_when_the_caller_drops_it(
    defense: refiner.Defense, batch: tuple[torch.Tensor, torch.Tensor]
) -> None:
    model = MLP(hidden=8)
    for _ in range(2):
        refiner.backward(model, nn.functional.cross_entropy, *batch, defense)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_a_model_is_validated_once_for_the_same_loss(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, loss = MLP(hidden=8), nn.functional.cross_entropy
    for _ in range(3):
        refiner.backward(model, loss, *batch, refiner.NoDefense())
    assert len(_TASKS[model]) == 1
    for factor in range(6):
        scaled = lambda scores, labels, factor=factor: factor * loss(scores, labels)  # noqa: E731
        refiner.backward(model, scaled, *batch, refiner.NoDefense())
    assert len(_TASKS[model]) == _TASKS_PER_MODEL


def plain_scores(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scores: torch.Tensor = model(x)
    return scores


COMPUTED = ["none", "pruning:rate=0.5", "refiner:search=always,iterations=2", "refiner-paper:iterations=1+gq"]
BUDGET = "refiner:search=always,iterations=2,search_budget=0,error_feedback=false"
NOT_COMPUTED = ["refiner:search=never", BUDGET, "soteria"]


@pytest.mark.parametrize("spec", COMPUTED + NOT_COMPUTED)
def test_the_result_has_the_loss_and_scores_of_the_real_data(
    spec: str, batch: tuple[torch.Tensor, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, loss, defense = refiner.LeNet(), nn.functional.cross_entropy, make_defense(spec)
    scores = plain_scores(model, batch[0])
    result = refiner.backward(model, loss, *batch, defense, state=defense.init_state())
    passes, compute = 0, refiner.Task.scores

    def count(*arguments: Any) -> torch.Tensor:
        nonlocal passes
        passes += 1
        return compute(*arguments)

    monkeypatch.setattr(refiner.Task, "scores", count)
    torch.testing.assert_close(result.scores, scores)
    torch.testing.assert_close(result.loss, loss(scores, batch[1]))
    assert not result.scores.requires_grad and not result.loss.requires_grad
    # Read again, they cost nothing; the first time they cost a pass only where the defence made none.
    assert torch.equal(result.scores, result.scores)
    assert passes == (spec in NOT_COMPUTED)


def test_scores_of_a_changed_model_are_refused_not_wrong(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    loss = nn.functional.cross_entropy
    for defense, computed in ((refiner.NoDefense(), True), (refiner.Refiner(search="never"), False)):
        model = MLP(hidden=8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        before = plain_scores(model, batch[0])
        result = refiner.backward(model, loss, *batch, defense)
        optimizer.step()
        if computed:
            torch.testing.assert_close(result.scores, before)
        else:
            with pytest.raises(
                refiner.ProtectionError, match=r"read loss or scores before optimizer.step\(\)$"
            ):
                _ = result.loss


def test_loss_and_scores_are_no_part_of_what_is_sent(
    batch: tuple[torch.Tensor, torch.Tensor], tmp_path: Path
) -> None:
    result = refiner.backward(refiner.LeNet(), nn.functional.cross_entropy, *batch, refiner.NoDefense())
    result.update.save(tmp_path / "update.safetensors")
    with safe_open(tmp_path / "update.safetensors", "pt") as file:
        stored = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert stored == 15826
    assert repr(result) == "BatchResult(Update(none, victims=1, samples=4, parameters=8))"
    with pytest.raises(TypeError, match="send its update"):
        pickle.dumps(result)
