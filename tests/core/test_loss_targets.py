"""Losses that compare scores with other things than one class label: soft labels, BCE, regression."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import refiner
from refiner.core.task import Loss, Task
from refiner.defenses import make_defense
from refiner.errors import DataError

SAMPLE = refiner.load_sample()
X, LABELS = SAMPLE.images[:16], SAMPLE.labels[:16]


def net(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 5, stride=4), nn.Tanh(), nn.Flatten(), nn.Linear(196, outputs))


def one_number(scores: Tensor, y: Tensor) -> Tensor:
    return F.huber_loss(scores[:, 0], y)


CASES: dict[str, tuple[int, Loss, Tensor]] = {
    "soft labels": (10, F.cross_entropy, 0.8 * F.one_hot(LABELS, 10) + 0.02),
    "multi-label": (
        10,
        F.binary_cross_entropy_with_logits,
        (torch.arange(160).view(16, 10) % 3 == 0).float(),
    ),
    "regression": (3, F.mse_loss, torch.linspace(-1, 1, 48).view(16, 3)),
    "one number": (1, one_number, torch.linspace(-1, 1, 16)),
}


@pytest.mark.parametrize("case", CASES)
def test_the_undefended_gradient_is_that_of_the_loss(case: str) -> None:
    outputs, loss, y = CASES[case]
    model = net(outputs)
    result = refiner.backward(model, loss, X, y, refiner.NoDefense())
    value = loss(model(X), y)
    torch.testing.assert_close(result.loss, value.detach())
    for parameter, expected in zip(
        model.parameters(), torch.autograd.grad(value, list(model.parameters())), strict=True
    ):
        torch.testing.assert_close(parameter.grad, expected)


@pytest.mark.parametrize("case", CASES)
def test_refiner_sends_the_gradient_of_noisy_images(case: str) -> None:
    outputs, loss, y = CASES[case]
    model, defense = net(outputs), refiner.Refiner(secret=bytes(32), search="never")
    refiner.backward(model, loss, X, y, defense)
    noisy = defense.protection(Task(model, example=X, loss=loss), X, y).robust
    assert noisy is not None
    expected = torch.autograd.grad(loss(model(noisy[0]), y), list(model.parameters()))
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_the_search_comes_closer_to_the_gradient(case: str) -> None:
    outputs, loss, y = CASES[case]
    task = Task(net(outputs), example=X, loss=loss)
    real = refiner.flatten(refiner.gradients(task, X[None], y[None]))
    errors = []
    for search in ("never", "always"):
        defense = refiner.Refiner(secret=bytes(32), search=search)
        update = defense.protect(task, X, y, state=defense.init_state())
        errors.append(float((refiner.flatten(update.tensors) - real).norm()))
    assert errors[1] < 0.8 * errors[0]


def test_samples_are_clipped_one_by_one() -> None:
    outputs, loss, y = CASES["soft labels"]
    model = net(outputs)
    defense = make_defense("dp-gaussian:magnitude=0,clip=0.1,per_sample=true")
    refiner.backward(model, loss, X, y, defense)
    total = [torch.zeros_like(p) for p in model.parameters()]
    for x_one, y_one in zip(X, y, strict=True):
        one = torch.autograd.grad(loss(model(x_one[None]), y_one[None]), list(model.parameters()))
        norm = torch.cat([g.flatten() for g in one]).norm()
        for clipped, gradient in zip(total, one, strict=True):
            clipped.add_(gradient * min(1.0, float(0.1 / norm)) / len(X))
    for parameter, expected in zip(model.parameters(), total, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("case", CASES)
def test_a_protected_training_loop_takes_them(case: str) -> None:
    outputs, loss, y = CASES[case]
    model = net(outputs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    protected, optimizer, loader = refiner.protect_training(
        model, optimizer, [(X, y)] * 3, refiner.NoDefense(), loss=loss
    )
    values = []
    for x_batch, y_batch in loader:
        optimizer.zero_grad()
        value = loss(protected(x_batch), y_batch)
        value.backward()
        optimizer.step()
        values.append(float(value.detach()))
    assert values[2] < values[0]


@pytest.mark.parametrize(
    ("loss", "y", "message"),
    [
        (
            F.binary_cross_entropy_with_logits,
            LABELS,
            r"y = torch.int64 \[16\]: expected dense floating-point values \[16, 10\]$",
        ),
        (
            F.cross_entropy,
            torch.rand(16),
            r"expected dense torch.int64 labels \[16\] or floating-point values \[16, 10\]$",
        ),
        (F.cross_entropy, torch.rand(16, 9), r"y = torch.float32 \[16, 9\]: expected"),
        (F.mse_loss, torch.full((16, 10), torch.nan), "y: contains NaN or infinity; no update was made"),
    ],
)
def test_targets_that_the_loss_does_not_take_are_one_line(loss: Loss, y: Tensor, message: str) -> None:
    with pytest.raises(DataError, match=message) as error:
        refiner.backward(net(10), loss, X, y, refiner.NoDefense())
    assert len(str(error.value).splitlines()) == 1


def test_an_audit_needs_a_loss_of_class_labels() -> None:
    task = Task(net(10), example=X, loss=F.binary_cross_entropy_with_logits)
    with pytest.raises(DataError, match="expected a loss that takes class labels"):
        refiner.audit(task, X, LABELS)
