"""`protect_training`: an ordinary loop gets the gradients of `refiner.backward`, and never a raw one."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import refiner
from refiner.data import load_sample
from refiner.defenses import make_defense
from refiner.models import MLP
from refiner.protected_training import ProtectedLoader, ProtectedModel

CROSS_ENTROPY = nn.functional.cross_entropy
Protected = tuple[ProtectedModel, torch.optim.Optimizer, ProtectedLoader]


def batches(count: int = 3, size: int = 4) -> list[tuple[Tensor, Tensor]]:
    sample = load_sample()
    return [(sample.images[i : i + size], sample.labels[i : i + size]) for i in range(0, count * size, size)]


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def protected(
    module: nn.Module | None = None, defense: refiner.Defense | None = None, **settings: Any
) -> Protected:
    module = module or MLP(hidden=8)
    defense = defense or refiner.Refiner(secret=bytes(32), search="never")
    return refiner.protect_training(module, sgd(module), batches(), defense, **settings)


def empty(model: nn.Module) -> bool:
    return all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("spec", ["none", "refiner:search=always,iterations=2", "refiner:search=never"])
def test_an_ordinary_loop_trains_as_with_backward_bit_by_bit(spec: str) -> None:
    plain = refiner.LeNet()
    module = copy.deepcopy(plain)
    defense, again = (make_defense(spec).with_seeded_key(0) for _ in range(2))
    state, by_backward = defense.init_state(), sgd(plain)
    model, optimizer, loader = refiner.protect_training(module, sgd(module), batches(), again)
    assert len(loader) == 3
    for (x, y), (same_x, same_y) in zip(loader, batches(), strict=True):
        optimizer.zero_grad()
        loss = CROSS_ENTROPY(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)

        by_backward.zero_grad()
        result = refiner.backward(plain, CROSS_ENTROPY, same_x, same_y, defense, state=state)
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        torch.testing.assert_close(loss.detach(), result.loss)
        for p, q in zip(model.parameters(), plain.parameters(), strict=True):
            assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)
        optimizer.step()
        by_backward.step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, plain.state_dict()[name])


@pytest.mark.parametrize(("scale", "divide"), [(1.0, 1), (1 / 3, 3)])
def test_gradients_of_several_batches_add_up(scale: float, divide: int) -> None:
    plain, defense = MLP(hidden=8), refiner.Refiner(secret=bytes(32), search="never")
    model, optimizer, loader = protected(copy.deepcopy(plain), defense, loss_scale=scale)
    for x, y in loader:
        (nn.CrossEntropyLoss()(model(x), y) / divide).backward()
    for x, y in batches():
        refiner.backward(plain, CROSS_ENTROPY, x, y, defense)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None
        torch.testing.assert_close(p.grad, q.grad / divide)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    x, y = next(iter(loader))
    (CROSS_ENTROPY(model(x), y) / divide).backward()
    optimizer.step()


def test_augmented_batches_keep_the_noise_of_their_images() -> None:
    sample, module = load_sample(), MLP(hidden=8)
    plain, defense = copy.deepcopy(module), refiner.Refiner(search="never")
    pairs = list(zip(sample.images[:4], sample.labels[:4], strict=True))
    noisy_data = refiner.NoisyDataset(pairs, defense, lambda image: image.flip(-1))
    batches = torch.utils.data.DataLoader(noisy_data, batch_size=4)
    model, _, loader = refiner.protect_training(module, sgd(module), batches, defense)
    for x, y in loader:
        CROSS_ENTROPY(model(x), y).backward()
    x, noisy, y = next(iter(batches))
    refiner.backward(plain, CROSS_ENTROPY, x, y, defense, noisy=noisy)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None and torch.equal(p.grad, q.grad)


def backward_twice(model: ProtectedModel, x: Tensor, y: Tensor) -> None:
    loss = CROSS_ENTROPY(model(x), y)
    loss.backward(retain_graph=True)
    model.zero_grad()
    loss.backward()


def model_called_twice(model: ProtectedModel, x: Tensor, y: Tensor) -> None:
    (CROSS_ENTROPY(model(x), y) + CROSS_ENTROPY(model(x), y)).backward()


def evaluation_mode(model: ProtectedModel, x: Tensor, y: Tensor) -> None:
    CROSS_ENTROPY(model.eval()(x), y).backward()


MISUSE: dict[str, tuple[Callable[[ProtectedModel, Tensor, Tensor], object], str]] = {
    "backward twice": (backward_twice, "called twice for one batch"),
    "model called twice": (model_called_twice, "called twice with one batch"),
    "evaluation mode": (evaluation_mode, "evaluation mode; call model.train()"),
    "other inputs": (lambda model, x, y: model(x + 0), "not the protected loader's current batch"),
    "other labels": (lambda model, x, y: CROSS_ENTROPY(model(x), 9 - y).backward(), "loss="),
    "another loss": (lambda model, x, y: model(x).square().mean().backward(), "loss="),
    "a scaled loss": (lambda model, x, y: (CROSS_ENTROPY(model(x), y) / 4).backward(), "loss_scale="),
    "original model": (lambda model, x, y: CROSS_ENTROPY(model.module(x), y).backward(), "raw gradient"),
    "autograd.grad": (
        lambda model, x, y: torch.autograd.grad(CROSS_ENTROPY(model.module(x), y), [*model.parameters()]),
        "raw gradient",
    ),
}


@pytest.mark.parametrize("case", MISUSE)
def test_misuse_raises_one_line_and_leaves_every_grad_empty(case: str) -> None:
    misuse, message = MISUSE[case]
    model, optimizer, loader = protected()
    before = copy.deepcopy(model.state_dict())
    x, y = next(iter(loader))
    with pytest.raises(refiner.ProtectionError) as caught:
        misuse(model, x, y)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert empty(model)
    with pytest.raises(refiner.ProtectionError, match=r"no protected gradient; call loss.backward\(\)"):
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def forward_in_autocast(model: ProtectedModel, x: Tensor, y: Tensor) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = CROSS_ENTROPY(model(x), y)
    loss.backward()


def backward_in_autocast(model: ProtectedModel, x: Tensor, y: Tensor) -> None:
    loss = CROSS_ENTROPY(model(x), y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss.backward()


@pytest.mark.parametrize("misuse", [forward_in_autocast, backward_in_autocast])
@pytest.mark.parametrize("step", [0, 1])
def test_autocast_is_refused_in_the_first_step_and_later(misuse: Callable[..., None], step: int) -> None:
    """The model is validated in the first step only; a later one must not pass for that."""
    model, optimizer, loader = protected()
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        if number == step:
            with pytest.raises(refiner.ProtectionError) as caught:
                misuse(model, x, y)
            assert str(caught.value) == (
                "torch.autocast is on for cpu: protected gradients are computed in full precision only; "
                "move model(x) and loss.backward() out of the autocast block"
            )
            assert empty(model)
            break
        CROSS_ENTROPY(model(x), y).backward()
        optimizer.step()


def test_autocast_is_allowed_around_the_loss_and_in_evaluation() -> None:
    model, optimizer, loader = protected()
    for x, y in loader:
        optimizer.zero_grad()
        scores = model(x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = CROSS_ENTROPY(scores, y)
        loss.backward()
        optimizer.step()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.eval()(x).dtype == torch.bfloat16


def test_a_grad_scaler_is_refused_by_name() -> None:
    model, _, loader = protected()
    x, y = next(iter(loader))
    with pytest.raises(refiner.ProtectionError, match="GradScaler is not supported"):
        torch.amp.GradScaler("cpu").scale(CROSS_ENTROPY(model(x), y)).backward()
    assert empty(model)


def test_a_backward_pass_after_the_next_batch_is_refused() -> None:
    model, _, loader = protected()
    iterator = iter(loader)
    x, y = next(iterator)
    loss = CROSS_ENTROPY(model(x), y)
    next(iterator)
    with pytest.raises(refiner.ProtectionError, match="the loader has gone on"):
        loss.backward()
    assert empty(model)


def test_parameters_have_no_raw_gradient_through_the_protected_model() -> None:
    model, _, loader = protected()
    x, y = next(iter(loader))
    with pytest.raises(RuntimeError, match="not have been used in the graph"):
        torch.autograd.grad(CROSS_ENTROPY(model(x), y), [*model.parameters()])
    assert empty(model)


def test_a_grad_from_elsewhere_is_not_applied_and_every_grad_is_emptied() -> None:
    model, optimizer, loader = protected()
    x, y = next(iter(loader))
    CROSS_ENTROPY(model(x), y).backward()
    model.module.head.bias.grad = torch.ones(10)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(refiner.ProtectionError, match="did not come from the protected model"):
        optimizer.step()
    assert empty(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_parameter_that_is_unfrozen_later_is_guarded_by_the_optimizer() -> None:
    module = MLP(hidden=8)
    module.head.requires_grad_(False)
    model, optimizer, loader = protected(module)
    module.head.requires_grad_(True)
    x, y = next(iter(loader))
    with pytest.raises(refiner.ProtectionError, match="raw gradient"):
        CROSS_ENTROPY(module(x), y).backward()
    with pytest.raises(refiner.ProtectionError, match=r"optimizer"):
        optimizer.step()
    assert empty(model)


def test_a_closure_is_refused() -> None:
    module = MLP(hidden=8)
    optimizer = torch.optim.LBFGS(module.parameters())
    model, optimizer, loader = refiner.protect_training(module, optimizer, batches(), refiner.NoDefense())
    x, y = next(iter(loader))
    with pytest.raises(refiner.ProtectionError, match="closure"):
        optimizer.step(lambda: CROSS_ENTROPY(model(x), y))
    assert empty(model)


def test_a_failed_defence_leaves_every_grad_empty() -> None:
    x, y = batches()[0]
    module = MLP(hidden=8)
    data = [(x * torch.nan, y)]
    model, _, loader = refiner.protect_training(module, sgd(module), data, refiner.Refiner())
    for x, y in loader:
        with pytest.raises(refiner.DataError, match="NaN"):
            CROSS_ENTROPY(model(x), y).backward()
    assert empty(model)


def test_evaluation_takes_any_input_and_private_batches_set_no_buffer() -> None:
    module = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Dropout(), nn.Linear(3072, 10))
    model, optimizer, loader = protected(module, refiner.NoDefense())
    for x, y in loader:
        optimizer.zero_grad()
        CROSS_ENTROPY(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            model(x)
    assert int(module[0].num_batches_tracked) == 0
    model.eval()
    with torch.no_grad():
        x = torch.rand(2, 3, 32, 32)
        assert torch.equal(model(x), module(x))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "model": ({"model": 1}, "model = int: expected a torch.nn.Module that is not protected yet"),
    "optimizer": ({"optimizer": 1}, "optimizer = int: expected a torch.optim.Optimizer"),
    "other parameters": (
        {"optimizer": sgd(MLP(hidden=8))},
        "optimizer: expected only parameters of the model",
    ),
    "loader": ({"loader": iter([])}, "loader = list_iterator: expected a DataLoader"),
    "defense": ({"defense": "refiner"}, "defense = str: expected a Defense"),
    "loss": ({"loss": 1}, "loss = int: expected a function loss(scores, labels)"),
    "loss_scale": ({"loss_scale": 0}, "loss_scale = 0: expected a number in (0, ∞)"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_argument_raises_a_one_line_error_that_names_it(case: str) -> None:
    changed, message = WRONG[case]
    module = MLP(hidden=8)
    valid: dict[str, Any] = {"model": module, "optimizer": sgd(module), "loader": batches()}
    with pytest.raises(refiner.RefinerError) as caught:
        refiner.protect_training(**{**valid, "defense": refiner.NoDefense(), **changed})
    assert str(caught.value).startswith(message)


def test_batches_of_another_form_are_refused() -> None:
    module = MLP(hidden=8)
    for wrong in (torch.rand(2, 3), {"x": 1, "y": 2}, (1, 2)):
        _, _, loader = refiner.protect_training(module, sgd(module), [wrong], refiner.NoDefense())
        with pytest.raises(refiner.DataError, match=r"^loader = "):
            next(iter(loader))
