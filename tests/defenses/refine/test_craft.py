"""Equation 2 against a plain loop, random signs of uploads, and the precision of the search."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from refiner.core import NoiseSource, Task, flatten, gradients
from refiner.defenses import NoDefense, Refiner
from refiner.defenses.refine import craft
from refiner.defenses.refine.craft import _bfloat16_gradient
from refiner.errors import ProtectionError
from refiner.evaluation.network import EvaluationNetwork
from refiner.models import LeNet

LAYERS = {"body": 1, "middle": 2, "head": 3}
"""The i of τ^i."""


def by_hand(
    model: nn.Module, x: Tensor, y: Tensor, start: Tensor, network: nn.Module, settings: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Equations 2 to 5 for one batch: robust data, and the part of their change that is due to UM."""
    names, values = zip(*model.named_parameters(), strict=True)

    def gradient(data: Tensor) -> tuple[Tensor, ...]:
        loss = nn.functional.cross_entropy(model(data), y)
        return torch.autograd.grad(loss, values, create_graph=True)

    real = [g.detach() for g in gradient(x)]
    weights = [
        (g * p.detach()).abs() ** settings["element_power"] * settings["tau"] ** LAYERS[name.split(".")[0]]
        for name, g, p in zip(names, real, values, strict=True)
    ]
    whole = sum(((w * g) ** 2).sum() for w, g in zip(weights, real, strict=True))
    robust, by_utility = start, torch.zeros_like(start)
    for _ in range(settings["iterations"]):
        robust = robust.detach().requires_grad_()
        pairs = zip(weights, gradient(robust), real, strict=True)
        um = sum(((w * (a - b)) ** 2).sum() for w, a, b in pairs)
        um = um / whole if settings["relative"] else um
        pm = ((robust - x) ** 2).mean() if settings["privacy"] == "mse" else network(robust).mean()
        (um_gradient,) = torch.autograd.grad(um, robust)
        (pm_gradient,) = torch.autograd.grad(pm, robust)
        by_utility = by_utility - settings["step"] * um_gradient
        robust = robust.detach() - settings["step"] * (um_gradient - settings["beta"] * pm_gradient)
    return robust, by_utility


@pytest.mark.parametrize(
    ("relative", "power", "tau", "privacy", "beta", "step"),
    [
        (False, 1.0, 0.95, "network", 0.0, 300.0),
        (False, 1.0, 0.5, "network", 0.001, 1000.0),
        (False, 0.5, 0.5, "network", 0.02, 30.0),
        (False, 0.0, 0.5, "network", 0.3, 1.0),
        (True, 1.0, 0.95, "network", 1.0, 3.0),
        (True, 0.0, 1.0, "mse", 2.0, 1.0),
    ],
)
def test_the_papers_descent_agrees_with_a_plain_loop(
    backwards: nn.Module,
    images: tuple[Tensor, Tensor],
    relative: bool,
    power: float,
    tau: float,
    privacy: str,
    beta: float,
    step: float,
) -> None:
    """UM with raw weights is tiny: the model's weights are doubled here, and the step is large."""
    model = copy.deepcopy(backwards)
    with torch.no_grad():
        for value in model.parameters():
            value.mul_(2)
    x, y = images[0][:2, 0], images[1][:2, 0]
    network = copy.deepcopy(EvaluationNetwork.bundled()).double()
    settings: dict[str, Any] = {
        "relative": relative,
        "element_power": power,
        "tau": tau,
        "privacy": privacy,
        "beta": beta,
        "step": step,
        "iterations": 3,
    }
    noise = NoiseSource(seed=7)
    drawn = noise.uniform(noise.identify(x, axes=1), (3, 32, 32), torch.float64)
    expected, by_utility = by_hand(model, x, y, 0.5 * x + 0.5 * drawn, network, settings)
    assert by_utility.abs().max() > 0.01
    task = Task(model, example=x)
    result = Refiner.paper(epsilon=None, network=network, **settings).protection(task, x, y, seed=7)
    assert result.robust is not None
    torch.testing.assert_close(result.robust[0], expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(result.update.flat(), NoDefense().protect(task, expected, y).flat())


SIGNED: dict[str, Any] = {"iterations": 1, "granularity": "sample", "beta": 0.0, "warm_start": False}


def signs_of(task: Task, x: Tensor, y: Tensor) -> Tensor:
    """The sign of every victim's image; asserts that each upload is g* or 2g − g*."""
    real = NoDefense().protect(task, x, y).flat()
    star = Refiner(**SIGNED).protect(task, x, y, seed=0).flat()
    upload = Refiner(random_sign=True, **SIGNED).protect(task, x, y, seed=0).flat()
    unchanged = (upload - star).norm(dim=1) < 1e-9
    mirrored = (upload - (2 * real - star)).norm(dim=1) < 1e-9
    assert (unchanged ^ mirrored).all()
    return unchanged.double() - mirrored.double()


def test_a_random_sign_mirrors_about_half_of_the_uploads_at_the_real_gradient(
    task: Task, images: tuple[Tensor, Tensor]
) -> None:
    x, y = images
    signs = signs_of(task, x, y)
    assert 8 <= (signs < 0).sum() <= 24
    order = torch.randperm(32)
    assert torch.equal(signs_of(task, x[order], y[order]), signs[order])


def test_the_sign_is_independent_of_the_noise(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images
    start = Refiner(**{**SIGNED, "iterations": 0}).protection(task, x, y, seed=0).robust
    noise = (start - x).flatten(1).sign()
    agreement = (noise * signs_of(task, x, y)[:, None]).mean(0)
    assert agreement[0].abs() < 0.6 and agreement.mean().abs() < 0.1


def test_a_batch_uploads_the_mean_of_its_signed_samples(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images
    signed = Refiner(random_sign=True, **SIGNED)
    alone = signed.protect(task, x, y, seed=0).flat()
    together = signed.protect(task, x[:, 0], y[:, 0], seed=0).flat()
    torch.testing.assert_close(together[0], alone.mean(0))


def test_the_bfloat16_gradient_is_close_to_the_exact_one() -> None:
    torch.manual_seed(0)
    x, y = torch.rand(1, 4, 3, 8, 8), torch.randint(10, (1, 4))
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.GroupNorm(4, 8),
        nn.GELU(),
        nn.Conv2d(8, 8, 3),
        nn.Flatten(),
        nn.Linear(128, 10),
    )
    task = Task(model, example=x[0])
    exact = flatten(gradients(task, x, y))
    half = _bfloat16_gradient(task, task.parameters(), y)(x)
    assert half.dtype == torch.float32
    assert 0 < float((half - exact).norm() / exact.norm()) < 0.03


@pytest.mark.parametrize("size", [1, 16])
def test_an_upload_is_compared_with_the_real_gradient_in_float32(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding error must not count as noise: here TF32 has an error of 5 %, the upload none."""

    def rounded(*arguments: Any, **options: Any) -> dict[str, Tensor]:
        error = 0.05 if torch.backends.cudnn.allow_tf32 else 0.0
        return {name: g + error * g.abs().mean() for name, g in gradients(*arguments, **options).items()}

    monkeypatch.setattr(craft, "gradients", rounded)
    x, y = torch.rand(1, size, 3, 32, 32), torch.arange(size)[None] % 10
    bare = Refiner(start="blend", alpha=0, iterations=0)
    with pytest.raises(ProtectionError, match="almost the real gradient"):
        bare.protect(Task(LeNet(), example=x[0]), x, y)
