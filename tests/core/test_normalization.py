"""The written-out norms: equal to PyTorch's, and right where PyTorch's are not."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from refiner.core.normalization import write_out
from refiner.errors import DataError

Make = Callable[[], nn.Module]

PLAIN: dict[str, tuple[Make, tuple[int, ...]]] = {
    "layer": (lambda: nn.LayerNorm(6), (2, 5, 6)),
    "layer of two axes": (lambda: nn.LayerNorm((5, 6)), (2, 5, 6)),
    "layer without bias": (lambda: nn.LayerNorm(6, bias=False), (2, 6)),
    "layer without weights": (lambda: nn.LayerNorm(6, elementwise_affine=False), (2, 6)),
    "layer with its own eps": (lambda: nn.LayerNorm(6, eps=0.5), (2, 6)),
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
    """PyTorch's norm in training mode with weights that are not 1 and 0, and the same written out."""
    theirs = make().double().train()
    for parameter in theirs.parameters():
        parameter.data.normal_()
    ours = copy.deepcopy(theirs).eval()
    write_out(ours)
    assert type(ours) is not type(theirs)
    return ours, theirs


@pytest.mark.parametrize("name", PLAIN)
def test_equal_to_pytorchs_in_training(name: str) -> None:
    make, shape = PLAIN[name]
    ours, theirs = pair(make)
    x = 3 * double(*shape) + 1
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-10, atol=1e-10)
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    assert not list(ours.buffers())


@pytest.mark.parametrize("name", PLAIN)
def test_derivatives_under_vmap(name: str) -> None:
    """First order against PyTorch's own norm on each victim, second order against finite differences."""
    make, shape = PLAIN[name]
    ours, theirs = pair(make)
    x, mix = double(2, *shape), double(shape[-1], shape[-1])

    def loss(module: nn.Module, parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        inner = {name: value for name, value in parameters.items() if name != "mix"}
        return torch.tanh(functional_call(module, inner, (x @ parameters["mix"],))).square().sum()

    def batched(x: Tensor) -> dict[str, Tensor]:
        weights = {n: p.detach() for n, p in ours.named_parameters()} | {"mix": mix}
        return vmap(grad(lambda p, x: loss(ours, p, x)), (None, 0))(weights, x)

    found = batched(x)
    for victim in range(2):
        leaves = {n: p.detach().clone().requires_grad_() for n, p in theirs.named_parameters()}
        leaves["mix"] = mix.clone().requires_grad_()
        expected = torch.autograd.grad(loss(theirs, leaves, x[victim]), list(leaves.values()))
        for key, value in zip(leaves, expected, strict=True):
            torch.testing.assert_close(found[key][victim], value, rtol=1e-9, atol=1e-9)

    def mismatch(x: Tensor) -> Tensor:
        return torch.stack([value.square().sum() for value in batched(x).values()]).sum()

    assert torch.autograd.gradcheck(mismatch, (x.requires_grad_(),), fast_mode=True)


@pytest.mark.parametrize("name", ["layer", "batch 2d", "instance 2d with all", "group"])
def test_one_order_more(name: str) -> None:
    """An adaptive attack differentiates through a defence that differentiates twice."""
    make, shape = PLAIN[name]
    ours, _ = pair(make)
    weights, x = {n: p.detach() for n, p in ours.named_parameters()}, double(2, *shape)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.tanh(functional_call(ours, parameters, (x,))).square().sum()

    def mismatch(x: Tensor) -> Tensor:
        gradients = vmap(grad(loss), (None, 0))(weights, x)
        return torch.stack([value.square().sum() for value in gradients.values()]).sum()

    assert torch.autograd.gradcheck(
        lambda x: grad(mismatch)(x).square().sum(), (x.requires_grad_(),), fast_mode=True
    )


def test_pytorchs_own_are_wrong_there() -> None:
    """Why this module exists; if this fails, PyTorch has mended it and the module can go."""
    layer, x = nn.LayerNorm(6).double(), double(2, 3, 6)
    weights = {n: p.detach() for n, p in layer.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.tanh(functional_call(layer, parameters, (x,))).square().sum()

    def mismatch(x: Tensor) -> Tensor:
        gradients = vmap(grad(loss), (None, 0))(weights, x)
        return torch.stack([value.square().sum() for value in gradients.values()]).sum()

    assert not torch.autograd.gradcheck(
        mismatch, (x.requires_grad_(),), raise_exception=False, fast_mode=True
    )


def test_a_whole_model_is_written_out() -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Sequential(nn.InstanceNorm2d(6), nn.GroupNorm(2, 6))
    )
    write_out(model)
    assert [type(m).__name__ for m in (model[1], *model[2])] == [
        "_WrittenBatchNorm",
        "_WrittenInstanceNorm",
        "_WrittenGroupNorm",
    ]
    assert isinstance(model[1], nn.modules.batchnorm._BatchNorm)
    assert not list(model.buffers())


class OwnForward(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class OwnName(nn.LayerNorm):
    pass


def test_a_subclass_keeps_a_forward_of_its_own() -> None:
    changed, named = OwnForward(6), OwnName(6)
    write_out(changed)
    write_out(named)
    assert type(changed) is OwnForward
    assert type(named).__name__ == "_WrittenLayerNorm"


@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.BatchNorm1d(6), (1, 6)), (nn.BatchNorm2d(6), (1, 6, 1, 1)), (nn.BatchNorm3d(6), (1, 6, 1, 1, 1))],
)
def test_batch_norm_needs_two_values(module: nn.Module, shape: tuple[int, ...]) -> None:
    write_out(module)
    with pytest.raises(DataError) as caught:
        module(torch.zeros(shape))
    assert str(caught.value) == "batch norm: 1 value a channel, expected at least 2; use larger batches"


@pytest.mark.parametrize(
    ("module", "shape"), [(nn.InstanceNorm2d(6), (4, 6, 1, 1)), (nn.InstanceNorm1d(6), (4, 6))]
)
def test_instance_norm_needs_two_values(module: nn.Module, shape: tuple[int, ...]) -> None:
    """One value a channel would be normalised to zero, whatever it was."""
    write_out(module)
    with pytest.raises(DataError) as caught:
        module(torch.rand(shape))
    assert str(caught.value) == "instance norm: 1 value a channel, expected at least 2; use larger inputs"


@pytest.mark.parametrize("name", ["layer", "group", "batch 2d"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_large_means_do_not_cancel(name: str, dtype: torch.dtype) -> None:
    make, shape = PLAIN[name]
    ours = make().to(dtype).eval()
    write_out(ours)
    for x in (torch.randn(*shape) + 1000, torch.full(shape, 1000.3)):
        exact = make().double().train()(x.to(dtype).double())
        assert float((ours(x.to(dtype)) - exact).detach().abs().max()) < 0.02


def test_parametrised_norms_are_left_alone() -> None:
    layer = nn.LayerNorm(6)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Identity())
    write_out(layer)
    assert layer(double(2, 6).float()).shape == (2, 6)
