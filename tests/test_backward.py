"""`backward` in an existing loop: fills `.grad`, adds up, and touches nothing when it fails."""

from typing import Any

import pytest
import torch
from torch import nn

import refiner
from refiner.data import load_sample


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    sample = load_sample()
    return sample.images[:4], sample.labels[:4]


def test_without_defence_it_is_loss_backward(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model = refiner.LeNet()
    nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()
    expected = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for times in (1, 2):
        refiner.backward(model, nn.functional.cross_entropy, *batch, refiner.NoDefense())
        for name, p in model.named_parameters():
            assert p.grad is not None
            torch.testing.assert_close(p.grad, times * expected[name], rtol=1e-4, atol=1e-6)


def test_a_model_learns_through_it(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    torch.manual_seed(0)
    model, loss = refiner.LeNet(), nn.functional.cross_entropy
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    defense = refiner.Refiner(iterations=2)
    before = loss(model(batch[0]), batch[1]).item()
    for _ in range(5):
        optimizer.zero_grad()
        refiner.backward(model, loss, *batch, defense)
        optimizer.step()
    assert loss(model(batch[0]), batch[1]).item() < before - 0.1


def test_frozen_parameters_get_nothing(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model = refiner.LeNet()
    model.body.requires_grad_(False)
    refiner.backward(model, nn.functional.cross_entropy, *batch, refiner.NoDefense())
    assert [name for name, p in model.named_parameters() if p.grad is not None] == [
        "head.weight",
        "head.bias",
    ]


def test_a_failure_leaves_every_grad_as_it_was(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, loss = refiner.LeNet(), nn.functional.cross_entropy
    x, y = batch
    with pytest.raises(refiner.DataError, match="NaN"):
        refiner.backward(model, loss, x * torch.nan, y, refiner.Refiner())
    assert all(p.grad is None for p in model.parameters())
    refiner.backward(model, loss, x, y, refiner.NoDefense())
    kept = [p.grad for p in model.parameters()]
    with torch.no_grad():
        model.head.weight.fill_(torch.inf)
    with pytest.raises(refiner.ProtectionError):
        refiner.backward(model, loss, x, y, refiner.Refiner(iterations=1))
    assert all(p.grad is k for p, k in zip(model.parameters(), kept, strict=True))


def test_a_model_that_was_rebuilt_is_examined_again(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, loss = refiner.LeNet(), nn.functional.cross_entropy
    refiner.backward(model, loss, *batch, refiner.NoDefense())
    model.body[1] = nn.Tanh()
    model.zero_grad()
    refiner.backward(model, loss, *batch, refiner.NoDefense())
    found = model.head.weight.grad
    assert found is not None
    (expected,) = torch.autograd.grad(loss(model(batch[0]), batch[1]), [model.head.weight])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


class Tempered(nn.Module):
    """A model that is set by a number and a tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3 * 32 * 32, 10)
        self.temperature = 1.0
        self.mask = torch.ones(3 * 32 * 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scores: torch.Tensor = self.layer(x.flatten(1) * self.mask) / self.temperature
        return scores


def test_a_model_that_was_set_otherwise_is_examined_again(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, loss = Tempered(), nn.functional.cross_entropy

    def gradient() -> torch.Tensor:
        model.zero_grad()
        return refiner.backward(model, loss, *batch, refiner.NoDefense()).tensors["layer.weight"][0]

    first = gradient()
    model.temperature = 4.0
    second = gradient()
    torch.testing.assert_close(
        second, torch.autograd.grad(loss(model(batch[0]), batch[1]), model.layer.weight)[0]
    )
    assert not torch.allclose(first, second)
    model.mask[:] = 0
    assert not bool(gradient().any())


def test_something_else_than_a_defence_is_refused(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
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
    "x elsewhere": ({"x": X.to("meta")}, "x on meta: expected the model's device, cpu"),
    "model a function": ({"model": lambda z: z}, "model = function: expected a torch.nn.Module"),
    "model without values": (
        {"model": refiner.LeNet().to("meta")},
        "model: body.0.weight on meta: expected a device that holds values",
    ),
    "loss a list": ({"loss": [1]}, "loss = list: expected a function loss(scores, labels)"),
}


@pytest.mark.parametrize("how", WRONG)
def test_a_wrong_argument_is_one_line_that_names_it(how: str) -> None:
    changed, message = WRONG[how]
    right = {"model": refiner.LeNet(), "loss": nn.functional.cross_entropy, "x": X, "y": Y}
    given: dict[str, Any] = {**right, "defense": refiner.NoDefense(), **changed}
    with pytest.raises(refiner.DataError) as caught:
        refiner.backward(**given)
    assert str(caught.value) == message


def test_a_grad_changed_in_place_leaves_the_update_alone(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    model, loss = refiner.LeNet(), nn.functional.cross_entropy
    for _ in range(2):
        update = refiner.backward(model, loss, *batch, refiner.NoDefense())
        before = update.flat().clone()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        assert torch.equal(update.flat(), before)
