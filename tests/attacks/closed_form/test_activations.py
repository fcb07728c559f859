"""Activation inversion: single images come back from a model with a wide strided convolution."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from refiner.attacks import ActivationInversion, Observation, make_attack
from refiner.attacks.closed_form.conv_inputs import conv_input
from refiner.attacks.closed_form.conv_layers import revealing_layer
from refiner.core import Task
from refiner.core.module_inputs import first_module_input, module_input
from refiner.core.noise import NoiseSource
from refiner.data import load_sample
from refiner.defenses import make_defense
from refiner.errors import DataError, SettingError
from refiner.models import LeNet

SAMPLE = load_sample()
X, Y = F.avg_pool2d(SAMPLE.images[:3], 4)[:, None], SAMPLE.labels[:3, None]


@pytest.fixture(scope="module")
def task() -> Task:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 40, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(640, 10),
    )
    return Task(model, example=X[0])


def observe(task: Task, defense: str = "none", x: Tensor = X) -> Observation:
    return Observation.of(task, make_defense(defense).protect(task, x, Y, seed=0))


def test_images_come_back_without_labels(task: Task) -> None:
    result = make_attack("activations:total_variation=0,iterations=300").reconstruct(observe(task))
    error = result.x - X
    assert float(error.square().mean().sqrt()) < 1e-3 and float(error.abs().max()) < 0.01
    assert torch.equal(result.labels, Y) and not bool(result.diverged.any())
    assert float(result.objective.max()) < 1e-4


def test_the_descent_is_that_of_a_plain_loop(task: Task) -> None:
    observation, iterations = observe(task, x=X[:1].expand(3, 1, 3, 8, 8)), 16
    attack = ActivationInversion(iterations=iterations, total_variation=0.3)
    result = attack.reconstruct(observation, seed=5)
    layer = revealing_layer(task)
    assert layer is not None and isinstance(task.model, nn.Sequential)
    front = task.model[:2]
    target = conv_input(task.unflatten(observation.gradient)[layer.weight][0], layer).float()
    noise = NoiseSource(seed=5).uniform(torch.zeros(1, 1, dtype=torch.long), (3, 8, 8), torch.float32)[0]
    x = 0.45 + 0.1 * noise
    optimizer, lowest, best = torch.optim.Adam([x], lr=0.1), torch.inf, x
    decay = torch.optim.lr_scheduler.MultiStepLR(optimizer, [6, 10, 14], gamma=0.1)
    for iteration in range(iterations + 1):
        x.requires_grad_()
        activation = front(x)
        smoothness = (x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()) / 2
        cosine = torch.cosine_similarity(activation.flatten(), target.flatten(), dim=0)
        value = 1 - cosine + 0.3 * smoothness * min(10 * decay.get_last_lr()[0], 1)
        if float(value.detach()) < lowest:
            lowest, best = float(value.detach()), x.detach().clone()
        (x.grad,) = torch.autograd.grad(value, x)
        x.requires_grad_(False)
        if iteration < iterations:
            optimizer.step()
            decay.step()
            x.clamp_(0, 1)
    torch.testing.assert_close(result.x[0], best, atol=1e-4, rtol=0)
    assert float(result.objective[0]) == pytest.approx(lowest, abs=1e-5)


def test_a_brightness_that_the_model_does_not_see_is_guessed_by_white() -> None:
    torch.manual_seed(0)
    stem = (nn.Conv2d(3, 24, 3, padding=1, bias=False), nn.GroupNorm(2, 24, eps=1e-9), nn.ReLU())
    model = nn.Sequential(*stem, nn.Conv2d(24, 40, 3, stride=2, padding=1), nn.Flatten(), nn.Linear(640, 10))
    task = Task(model, example=X[0])
    brightest = X.flatten(1).amax(1).view(-1, 1, 1, 1, 1)
    assert float(brightest.min()) < 0.9
    result = ActivationInversion(iterations=160).reconstruct(observe(task))
    torch.testing.assert_close(result.x, X / brightest, atol=0.04, rtol=0)
    centred = ActivationInversion(iterations=20, input_range=(-1.0, 1.0)).reconstruct(
        observe(task, x=2 * X - 1)
    )
    torch.testing.assert_close(centred.x.abs().flatten(1).amax(1), torch.ones(3))


def test_the_chunk_changes_nothing_and_channels_have_ranges(task: Task) -> None:
    attack, observation = ActivationInversion(iterations=5), observe(task)
    one = attack.reconstruct(observation, chunk=1)
    torch.testing.assert_close(one.x, attack.reconstruct(observation).x, atol=1e-5, rtol=0)
    ranges = ActivationInversion(iterations=5, input_range=((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))
    torch.testing.assert_close(ranges.reconstruct(observation).x, one.x, atol=1e-4, rtol=0)


def test_behind_a_defence_the_result_is_finite_and_worse(task: Task) -> None:
    noisy = observe(task, "dp-gaussian:magnitude=1e-1,clip=none")
    result = ActivationInversion(iterations=50).reconstruct(noisy)
    assert bool(result.x.isfinite().all()) and float(result.objective.min()) > 0.05


def test_what_it_does_not_fit_is_one_line(task: Task) -> None:
    with pytest.raises(DataError, match=r"^model = 'LeNet': expected a convolution .* activations reads$"):
        ActivationInversion().check(Task(LeNet(), example=SAMPLE.images[:1]))
    pairs = Observation.of(task, make_defense("none").protect(task, X[None, :2, 0], Y[None, :2, 0]))
    with pytest.raises(DataError, match=r"^batch = 2: expected 1: "):
        ActivationInversion().reconstruct(pairs)
    with pytest.raises(SettingError, match=r"^iterations = 0: expected an integer ≥ 1$"):
        ActivationInversion(iterations=0)
    with pytest.raises(SettingError, match=r"^total_variation = -1"):
        ActivationInversion(total_variation=-1)


def test_a_pass_ends_at_the_module(task: Task) -> None:
    parameters = task.parameters()
    for name in ("2", "5"):
        expected = module_input(task, parameters, X[0], name)
        assert torch.equal(first_module_input(task, parameters, X[0], name), expected)
    with pytest.raises(DataError, match=r"^0\.x: expected a module that runs in a pass$"):
        unused = nn.Sequential(nn.Flatten(), nn.Linear(192, 10))
        unused[0].add_module("x", nn.Identity())
        other = Task(unused, example=X[0])
        first_module_input(other, other.parameters(), X[0], "0.x")
