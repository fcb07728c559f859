"""Our norms equal PyTorch's, and have correct second derivatives where PyTorch's are wrong."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from refiner.core.normalization import replace_norms
from refiner.errors import DataError

Make = Callable[[], nn.Module]

NORMS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "layer": (lambda: nn.LayerNorm(6), (2, 5, 6)),
    "layer of two axes": (lambda: nn.LayerNorm((5, 6)), (2, 5, 6)),
    "layer without bias": (lambda: nn.LayerNorm(6, bias=False), (2, 6)),
    "layer without weights": (lambda: nn.LayerNorm(6, elementwise_affine=False), (2, 6)),
    "layer with another eps": (lambda: nn.LayerNorm(6, eps=0.5), (2, 6)),
    "batch 1d": (lambda: nn.BatchNorm1d(6), (4, 6)),
    "batch 1d of sequences": (lambda: nn.BatchNorm1d(6), (4, 6, 3)),
    "batch 1d without weights": (lambda: nn.BatchNorm1d(6, affine=False), (4, 6)),
    "batch 2d": (lambda: nn.BatchNorm2d(6), (4, 6, 3, 2)),
    "batch 2d without weights": (lambda: nn.BatchNorm2d(6, affine=False, eps=0.5), (4, 6, 3, 2)),
    "batch 2d without statistics": (lambda: nn.BatchNorm2d(6, track_running_stats=False), (4, 6, 3, 2)),
    "batch 2d of one sample": (lambda: nn.BatchNorm2d(6), (1, 6, 3, 2)),
    "batch 3d": (lambda: nn.BatchNorm3d(6), (2, 6, 2, 2, 2)),
    "instance 1d": (lambda: nn.InstanceNorm1d(6), (2, 6, 3)),
    "instance 1d with weights": (lambda: nn.InstanceNorm1d(6, affine=True), (2, 6, 3)),
    "instance 2d": (lambda: nn.InstanceNorm2d(6), (2, 6, 3, 2)),
    "group": (lambda: nn.GroupNorm(2, 6), (2, 6, 3, 2)),
    "group of one axis": (lambda: nn.GroupNorm(3, 6, eps=0.5), (4, 6)),
    "group without weights": (lambda: nn.GroupNorm(2, 6, affine=False), (2, 6, 3)),
    "instance 2d with all": (
        lambda: nn.InstanceNorm2d(6, affine=True, track_running_stats=True, eps=0.5),
        (2, 6, 3, 2),
    ),
}


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def pair(make: Make) -> tuple[nn.Module, nn.Module]:
    """Our norm, and PyTorch's in training mode, with the same random weights."""
    reference = make().double().train()
    for parameter in reference.parameters():
        parameter.data.normal_()
    ours = copy.deepcopy(reference).eval()
    replace_norms(ours)
    assert type(ours) is not type(reference)
    return ours, reference


@pytest.mark.parametrize("name", NORMS)
def test_outputs_equal_pytorchs_in_training_mode(name: str) -> None:
    make, shape = NORMS[name]
    ours, reference = pair(make)
    x = 3 * double(*shape) + 1
    torch.testing.assert_close(ours(x), reference(x), rtol=1e-10, atol=1e-10)
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in reference.named_parameters()]
    assert not list(ours.buffers())


@pytest.mark.parametrize("name", NORMS)
def test_first_and_second_derivatives_under_vmap_are_correct(name: str) -> None:
    """First order against PyTorch's norm on each victim, second order against finite differences."""
    make, shape = NORMS[name]
    ours, reference = pair(make)
    x, mix = double(2, *shape), double(shape[-1], shape[-1])

    def loss(module: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        inner = {name: value for name, value in parameters.items() if name != "mix"}
        return torch.tanh(functional_call(module, inner, (x @ parameters["mix"],))).square().sum()

    def batched(x: Tensor) -> dict[str, Tensor]:
        weights = {n: p.detach() for n, p in ours.named_parameters()} | {"mix": mix}
        return vmap(grad(lambda p, x: loss(ours, p, x)), (None, 0))(weights, x)

    gradients = batched(x)
    for victim in range(2):
        leaves = {n: p.detach().clone().requires_grad_() for n, p in reference.named_parameters()}
        leaves["mix"] = mix.clone().requires_grad_()
        expected = torch.autograd.grad(loss(reference, leaves, x[victim]), list(leaves.values()))
        for key, value in zip(leaves, expected, strict=True):
            torch.testing.assert_close(gradients[key][victim], value, rtol=1e-9, atol=1e-9)

    def squared_norm(x: Tensor) -> Tensor:
        return torch.stack([value.square().sum() for value in batched(x).values()]).sum()

    assert torch.autograd.gradcheck(squared_norm, (x.requires_grad_(),), fast_mode=True)


@pytest.mark.parametrize("name", ["layer", "batch 2d", "instance 2d with all", "group"])
def test_third_derivatives_are_correct(name: str) -> None:
    """An adaptive attack differentiates through a defence that differentiates twice."""
    make, shape = NORMS[name]
    ours, _ = pair(make)
    weights, x = {n: p.detach() for n, p in ours.named_parameters()}, double(2, *shape)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.tanh(functional_call(ours, parameters, (x,))).square().sum()

    def squared_norm(x: Tensor) -> Tensor:
        gradients = vmap(grad(loss), (None, 0))(weights, x)
        return torch.stack([value.square().sum() for value in gradients.values()]).sum()

    assert torch.autograd.gradcheck(
        lambda x: grad(squared_norm)(x).square().sum(), (x.requires_grad_(),), fast_mode=True
    )


WORKED_AROUND: dict[str, tuple[Make, tuple[int, ...]]] = {
    "LayerNorm": (lambda: nn.LayerNorm(6), (3, 6)),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(6, track_running_stats=False), (4, 6)),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(6, track_running_stats=False), (4, 6, 3, 2)),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(6, affine=True), (2, 6, 3, 2)),
}


@pytest.mark.parametrize("name", WORKED_AROUND)
def test_pytorchs_own_norms_are_still_wrong_to_second_order_under_vmap(name: str) -> None:
    """Why `core.normalization` exists: the derivative of Σ‖gradient‖² in x, by three independent ways.

    Plain autograd on one victim at a time agrees with finite differences and with our norms. PyTorch's norms
    under `vmap(grad(...))` do not.
    """
    torch.manual_seed(0)
    make, shape = WORKED_AROUND[name]
    ours, pytorchs = pair(make)
    weights = {n: p.detach() for n, p in pytorchs.named_parameters()}
    x, direction = double(2, *shape), double(2, *shape)

    def loss(module: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.tanh(functional_call(module, parameters, (x,))).square().sum()

    def squared_norm(point: Tensor) -> Tensor:
        """Σ‖gradient‖² over victims, each by plain autograd."""
        total = torch.zeros((), dtype=torch.float64)
        for victim in point:
            leaves = {n: p.clone().requires_grad_() for n, p in weights.items()}
            value = loss(pytorchs, leaves, victim)
            gradient = torch.autograd.grad(value, list(leaves.values()), create_graph=True)
            total = total + torch.stack([g.square().sum() for g in gradient]).sum()
        return total

    def batched_derivative(module: nn.Module) -> Tensor:
        point = x.clone().requires_grad_()
        gradient = vmap(grad(lambda p, x: loss(module, p, x)), (None, 0))(weights, point)
        total = torch.stack([g.square().sum() for g in gradient.values()]).sum()
        return torch.autograd.grad(total, point)[0]

    point = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(squared_norm(point), point)
    step = 1e-6
    difference = (squared_norm(x + step * direction) - squared_norm(x - step * direction)) / (2 * step)
    assert abs(float((expected * direction).sum() / difference.detach()) - 1) < 1e-6

    def error(actual: Tensor) -> float:
        return float((actual - expected).norm() / expected.norm())

    assert error(batched_derivative(ours)) < 1e-9
    wrong = error(batched_derivative(pytorchs))
    assert wrong > 1e-2, (
        f"PyTorch {torch.__version__} differentiates nn.{name} correctly to second order under vmap now "
        f"(relative error {wrong:.1e}): where every supported version does, its replacement in "
        "core/normalization.py can go"
    )


def test_all_norms_of_a_model_are_replaced() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Sequential(nn.InstanceNorm2d(6), nn.GroupNorm(2, 6))
    )
    replace_norms(model)
    assert [type(m).__name__ for m in (model[1], *model[2])] == [
        "_SecondOrderBatchNorm",
        "_SecondOrderInstanceNorm",
        "_SecondOrderGroupNorm",
    ]
    assert isinstance(model[1], nn.modules.batchnorm._BatchNorm)
    assert not list(model.buffers())


class OwnForward(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class OwnName(nn.LayerNorm):
    pass


def test_a_subclass_with_its_own_forward_is_not_replaced() -> None:
    changed, named = OwnForward(6), OwnName(6)
    replace_norms(changed)
    replace_norms(named)
    assert type(changed) is OwnForward
    assert type(named).__name__ == "_SecondOrderLayerNorm"


@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.BatchNorm1d(6), (1, 6)), (nn.BatchNorm2d(6), (1, 6, 1, 1)), (nn.BatchNorm3d(6), (1, 6, 1, 1, 1))],
)
def test_batch_norm_needs_two_values_per_channel(module: nn.Module, shape: tuple[int, ...]) -> None:
    replace_norms(module)
    with pytest.raises(DataError) as caught:
        module(torch.zeros(shape))
    assert str(caught.value) == "batch norm: 1 value per channel: expected at least 2; use larger batches"


@pytest.mark.parametrize(
    ("module", "shape"), [(nn.InstanceNorm2d(6), (4, 6, 1, 1)), (nn.InstanceNorm1d(6), (4, 6))]
)
def test_instance_norm_needs_two_values_per_channel(module: nn.Module, shape: tuple[int, ...]) -> None:
    """One value per channel would always be normalised to zero."""
    replace_norms(module)
    with pytest.raises(DataError) as caught:
        module(torch.rand(shape))
    assert str(caught.value) == "instance norm: 1 value per channel: expected at least 2; use larger inputs"


@pytest.mark.parametrize("name", ["layer", "group", "batch 2d"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_large_means_do_not_lose_precision(name: str, dtype: torch.dtype) -> None:
    make, shape = NORMS[name]
    ours = make().to(dtype).eval()
    replace_norms(ours)
    for x in (torch.randn(*shape) + 1000, torch.full(shape, 1000.3)):
        exact = make().double().train()(x.to(dtype).double())
        assert float((ours(x.to(dtype)) - exact).detach().abs().max()) < 0.02


def test_parametrised_norms_are_not_replaced() -> None:
    layer = nn.LayerNorm(6)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Identity())
    replace_norms(layer)
    assert layer(double(2, 6).float()).shape == (2, 6)
