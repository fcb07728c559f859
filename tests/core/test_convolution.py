"""Bilinear convolutions equal PyTorch's in every order, single and batched, by either formulation."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap

from refiner.core import convolution
from refiner.core.convolution import replace_convolutions

SHAPES = {
    "plain": ({"kernel_size": 3}, (7, 8)),
    "strided": ({"kernel_size": 5, "stride": 2, "padding": 2}, (8, 8)),
    "with a remainder": ({"kernel_size": 3, "stride": 3, "padding": 1}, (9, 7)),
    "dilated": ({"kernel_size": 3, "dilation": 2, "padding": 1}, (8, 9)),
    "not square": ({"kernel_size": (3, 2), "stride": (1, 2), "padding": (0, 1)}, (6, 7)),
    "of 1×1": ({"kernel_size": 1, "stride": 2, "bias": False}, (6, 6)),
}


@pytest.fixture(params=["groups", "columns"])
def formulation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "_use_columns", lambda t: request.param == "columns")


def pair(name: str) -> tuple[nn.Conv2d, nn.Conv2d, tuple[int, int]]:
    settings, size = SHAPES[name]
    reference = nn.Conv2d(2, 3, **settings).double()
    ours = copy.deepcopy(reference)
    replace_convolutions(ours)
    assert type(ours) is not nn.Conv2d
    return ours, reference, size


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def loss(module: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    return torch.tanh(functional_call(module, parameters, (x,))).square().sum()


@pytest.mark.parametrize("name", SHAPES)
def test_derivatives_of_one_victim_equal_pytorchs(name: str) -> None:
    ours, reference, size = pair(name)
    x = double(2, 2, *size)
    torch.testing.assert_close(ours(x), reference(x), rtol=1e-12, atol=1e-12)
    actual, expected = (_second_order(module, x) for module in (ours, reference))
    for ours_value, expected_value in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours_value, expected_value, rtol=1e-9, atol=1e-9)


def _second_order(module: nn.Module, x: Tensor) -> list[Tensor]:
    """First derivatives, and those of their squared norm in x and in the weights."""
    point = x.clone().requires_grad_()
    leaves = {n: p.detach().clone().requires_grad_() for n, p in module.named_parameters()}
    first = torch.autograd.grad(loss(module, leaves, point), [*leaves.values(), point], create_graph=True)
    total = torch.stack([g.square().sum() for g in first]).sum()
    return [*first, *torch.autograd.grad(total, [*leaves.values(), point])]


@pytest.mark.usefixtures("formulation")
@pytest.mark.parametrize("shared", [True, False], ids=["shared weights", "weights per victim"])
@pytest.mark.parametrize("name", SHAPES)
def test_batched_derivatives_equal_pytorchs_one_by_one(name: str, shared: bool) -> None:
    """Gradients of each victim's own loss, and their second derivatives, against PyTorch one by one."""
    ours, reference, size = pair(name)
    x = double(3, 2, 2, *size).requires_grad_()
    weights = {n: p.detach() for n, p in reference.named_parameters()}
    if not shared:
        weights = {n: torch.stack([p + double(*p.shape) for _ in range(3)]) for n, p in weights.items()}
    batched = vmap(grad(lambda p, x: loss(ours, p, x)), (None if shared else 0, 0))(weights, x)
    (second,) = torch.autograd.grad(torch.stack([g.square().sum() for g in batched.values()]).sum(), x)
    for victim in range(3):
        leaves = {n: (p if shared else p[victim]).clone().requires_grad_() for n, p in weights.items()}
        point = x[victim].detach().clone().requires_grad_()
        single = torch.autograd.grad(loss(reference, leaves, point), list(leaves.values()), create_graph=True)
        (expected,) = torch.autograd.grad(torch.stack([g.square().sum() for g in single]).sum(), point)
        for key, value in zip(leaves, single, strict=True):
            torch.testing.assert_close(batched[key][victim], value, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(second[victim], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.usefixtures("formulation")
def test_weights_per_victim_on_shared_inputs() -> None:
    ours, reference, size = pair("strided")
    x, weights = double(2, 2, *size), double(3, *reference.weight.shape)
    bias = reference.bias.detach()

    def run(module: nn.Module, weight: Tensor) -> Tensor:
        return functional_call(module, {"weight": weight, "bias": bias}, (x,))

    batched = vmap(lambda w: run(ours, w))(weights)
    single = torch.stack([run(reference, w) for w in weights])
    torch.testing.assert_close(batched, single, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("formulation")
def test_forward_mode_equals_a_finite_difference() -> None:
    """The derivative of batched gradients along a direction."""
    ours, _, size = pair("strided")
    weights = {n: p.detach() for n, p in ours.named_parameters()}
    x, d = double(3, 2, 2, *size), double(3, 2, 2, *size)

    def gradient(x: Tensor) -> Tensor:
        return vmap(grad(lambda p, x: loss(ours, p, x)), (None, 0))(weights, x)["weight"]

    _, derivative = jvp(gradient, (x,), (d,))
    step = 1e-6
    expected = (gradient(x + step * d) - gradient(x - step * d)) / (2 * step)
    torch.testing.assert_close(derivative, expected, rtol=1e-6, atol=1e-6)


class OwnForward(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 3, padding_mode="reflect", padding=1),
        nn.Conv2d(2, 4, 3, padding="same"),
        OwnForward(2, 4, 3),
    ],
    ids=["groups", "reflecting", "same", "own forward"],
)
def test_other_convolutions_are_not_replaced(module: nn.Conv2d) -> None:
    before = type(module)
    replace_convolutions(module)
    assert type(module) is before


def test_an_image_without_a_batch_axis_works() -> None:
    ours, reference, size = pair("plain")
    x = double(2, *size)
    torch.testing.assert_close(ours(x), F.conv2d(x, reference.weight, reference.bias))


def test_parametrised_convolutions_are_not_replaced() -> None:
    module = nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 4, 3))
    replace_convolutions(module)
    assert module(torch.zeros(1, 2, 8, 8)).shape == (1, 4, 6, 6)
