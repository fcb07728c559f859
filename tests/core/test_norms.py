"""The written-out norms: equal to PyTorch's, and right where PyTorch's are not."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from refiner.errors import DataError
from refiner.models.norms import BatchNorm, LayerNorm


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def test_layer_norm_equals_pytorchs() -> None:
    x = double(2, 5, 6)
    torch.testing.assert_close(LayerNorm(6).double()(x), nn.LayerNorm(6).double()(x))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("track", [True, False])
def test_batch_norm_equals_pytorchs(momentum: float | None, affine: bool, track: bool) -> None:
    settings = {"momentum": momentum, "affine": affine, "track_running_stats": track}
    ours, theirs = BatchNorm(6, **settings).double(), nn.BatchNorm2d(6, **settings).double()
    for _ in range(3):
        x = double(4, 6, 3, 3)
        torch.testing.assert_close(ours(x), theirs(x))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


def test_batch_norm_needs_two_values() -> None:
    with pytest.raises(DataError, match="1 value per channel, expected at least 2"):
        BatchNorm(6)(torch.zeros(1, 6, 1, 1))


def test_transforms_leave_running_statistics() -> None:
    layer = BatchNorm(6)
    before = {name: buffer.clone() for name, buffer in layer.named_buffers()}
    weights = dict(layer.named_parameters())

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layer, parameters, (x,)).square().sum()

    vmap(grad(loss), (None, 0))(weights, torch.rand(3, 2, 6, 4, 4))
    grad(loss)(weights, torch.rand(2, 6, 4, 4))
    for name, buffer in layer.named_buffers():
        assert torch.equal(buffer, before[name])


def layers() -> list[tuple[Callable[[], nn.Module], tuple[int, ...]]]:
    return [
        (lambda: LayerNorm(6), (2, 3, 6)),
        (lambda: BatchNorm(6), (2, 6, 2, 2)),
        (lambda: BatchNorm(6).eval(), (2, 6, 2, 2)),
        (lambda: nn.GroupNorm(3, 6), (2, 6, 2, 2)),
    ]


@pytest.mark.parametrize(("make", "shape"), layers())
def test_second_derivative_under_vmap(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Against finite differences, which no fused kernel can fool."""
    torch.manual_seed(0)
    layer, mix, x = make().double(), double(shape[-1], shape[-1]), double(2, *shape)
    weights = dict(layer.named_parameters()) | {"mix": mix}

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        inner = {name: value for name, value in parameters.items() if name != "mix"}
        return torch.tanh(functional_call(layer, inner, (x @ parameters["mix"],))).square().sum()

    def mismatch(x: Tensor) -> Tensor:
        gradients = vmap(grad(loss), (None, 0))(weights, x)
        return torch.stack([value.square().sum() for value in gradients.values()]).sum()

    def slope(x: Tensor) -> Tensor:
        return grad(mismatch)(x)

    assert torch.autograd.gradcheck(mismatch, (x.requires_grad_(),))
    # One order more: an adaptive attack differentiates through a defence that differentiates twice.
    assert torch.autograd.gradcheck(lambda x: slope(x).square().sum(), (x,))
