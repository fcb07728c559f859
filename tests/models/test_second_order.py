"""Each model under vmap(grad(...)) and once more differentiated: finite, and equal to a plain loop."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

from refiner.models import LeNet, ViT, resnet10, resnet18, resnet34
from refiner.models.settings import ACTIVATIONS

MODELS: dict[str, Callable[[], nn.Module]] = {
    **{f"lenet-{name}": lambda name=name: LeNet(4, (3, 16, 16), activation=name) for name in ACTIVATIONS},
    "resnet10-group": lambda: resnet10(4, (3, 16, 16)),
    "resnet10-batch": lambda: resnet10(4, (3, 16, 16), norm="batch"),
    "resnet10-batch-eval": lambda: resnet10(4, (3, 16, 16), norm="batch").eval(),
    "resnet18-group": lambda: resnet18(4, (3, 8, 8)),
    "resnet34-group": lambda: resnet34(4, (3, 8, 8)),
    "vit": lambda: ViT(4, (3, 16, 16), width=24, depth=2, heads=3),
}


@pytest.mark.parametrize("name", MODELS)
def test_double_backward_under_vmap(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]().double()
    weights = {key: value.detach() for key, value in model.named_parameters()}
    x = torch.rand(2, 2, *model.input_shape, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([[0, 1], [2, 3]])

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(model, parameters, (x,)), y)

    def size(gradients: dict[str, Tensor]) -> Tensor:
        return torch.stack([value.square().sum() for value in gradients.values()]).sum()

    (together,) = torch.autograd.grad(size(vmap(grad(loss), (None, 0, 0))(weights, x, y)), x)
    assert torch.isfinite(together).all()
    assert together.abs().max() > 0

    # The last victim alone, by plain autograd, which a fault in a batching rule can't touch.
    trained = {key: value.clone().requires_grad_() for key, value in weights.items()}
    alone = x[-1].detach().requires_grad_()
    first = torch.autograd.grad(loss(trained, alone, y[-1]), list(trained.values()), create_graph=True)
    (second,) = torch.autograd.grad(size(dict(zip(trained, first, strict=True))), alone)
    torch.testing.assert_close(together[-1], second, rtol=1e-7, atol=1e-9 * float(second.abs().max()))
