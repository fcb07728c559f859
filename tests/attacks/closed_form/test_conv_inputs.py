"""The input of a convolution from its gradient: equal to what the model computes, up to a factor."""

import pytest
import torch
from torch import Tensor, nn

from refiner.attacks.closed_form.conv_inputs import conv_input
from refiner.attacks.closed_form.conv_layers import ConvLayer, revealing_layer
from refiner.core import Task
from refiner.core.gradients import gradients
from refiner.core.module_inputs import module_input
from refiner.models import LeNet

IMAGES = torch.rand(2, 1, 3, 8, 8, generator=torch.Generator().manual_seed(3))
LABELS = torch.tensor([[3], [7]])


def small_model(
    norm: nn.BatchNorm2d | nn.GroupNorm,
    *,
    stride: int = 2,
    kernel: int = 3,
    activation: nn.Module | None = None,
) -> nn.Module:
    """A convolution with more positions than channels, then one of stride `stride` with fewer."""
    torch.manual_seed(0)
    side = (8 + 2 * (kernel // 2) - kernel) // stride + 1
    outputs = norm.num_features if isinstance(norm, nn.BatchNorm2d) else norm.num_channels
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.GroupNorm(4, 16),
        activation or nn.ReLU(),
        nn.Conv2d(16, outputs, kernel, stride=stride, padding=kernel // 2, bias=False),
        norm,
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(outputs * side**2, 10),
    )


def cosines(task: Task, layer: ConvLayer) -> Tensor:
    """The cosine of each victim's revealed input and the true one."""
    weight = gradients(task, IMAGES, LABELS)[layer.weight]
    revealed = torch.stack([conv_input(gradient, layer) for gradient in weight]).flatten(1)
    truth = torch.cat([module_input(task, task.parameters(), x, layer.name) for x in IMAGES])
    return torch.cosine_similarity(revealed, truth.detach().double().flatten(1))


@pytest.mark.parametrize(
    ("norm", "stride", "kernel", "shifts"),
    [
        (nn.GroupNorm(4, 40), 2, 3, (4, 4)),
        (nn.BatchNorm2d(40), 2, 3, (4, 4)),
        (nn.GroupNorm(4, 72), 1, 3, (1, 1)),
        (nn.BatchNorm2d(72), 1, 3, (1, 1)),
        (nn.GroupNorm(4, 40), 2, 5, (1, 1)),
    ],
)
def test_the_revealed_input_is_the_true_one(
    norm: nn.Module, stride: int, kernel: int, shifts: tuple[int, int]
) -> None:
    task = Task(small_model(norm, stride=stride, kernel=kernel), example=IMAGES[0])
    layer = revealing_layer(task)
    assert layer is not None and layer.name == "3" and layer.shifts == shifts
    assert layer.centred == isinstance(norm, nn.BatchNorm2d)
    assert float(cosines(task, layer).min()) > 1 - 1e-6


def test_layers_that_reveal_nothing() -> None:
    narrow = small_model(nn.GroupNorm(4, 12))
    assert revealing_layer(Task(narrow, example=IMAGES[0])) is None
    apart = small_model(nn.GroupNorm(4, 80), kernel=1, stride=2)
    assert revealing_layer(Task(apart, example=IMAGES[0])) is None
    # Without zeros shifted inputs can't be told apart; without shifts none are needed.
    smooth = small_model(nn.GroupNorm(4, 40), activation=nn.Sigmoid())
    assert revealing_layer(Task(smooth, example=IMAGES[0])) is None
    unshifted = small_model(nn.GroupNorm(4, 72), stride=1, activation=nn.Sigmoid())
    layer = revealing_layer(task := Task(unshifted, example=IMAGES[0]))
    assert layer is not None and float(cosines(task, layer).min()) > 1 - 1e-6
    assert revealing_layer(Task(LeNet(), example=torch.rand(1, 3, 32, 32))) is None


def test_a_gradient_of_any_size_gives_a_finite_input() -> None:
    task = Task(small_model(nn.GroupNorm(4, 40)), example=IMAGES[0])
    layer = revealing_layer(task)
    assert layer is not None
    weight = gradients(task, IMAGES, LABELS)[layer.weight][0]
    expected = conv_input(weight, layer)
    for factor in (1e-30, 1e30):
        torch.testing.assert_close(conv_input(weight.double() * factor, layer), expected)
    noise = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
    for other in (torch.zeros_like(weight), noise):
        assert bool(conv_input(other, layer).isfinite().all())
