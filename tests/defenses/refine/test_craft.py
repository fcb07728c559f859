"""Equation 2 against a loop of its own, the signs of uploads, and the search's own precision."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from refiner.core import NoiseSource, Task, flatten, gradients
from refiner.defenses import NoDefense, Refiner
from refiner.defenses.refine import craft
from refiner.defenses.refine.craft import _halved
from refiner.errors import ProtectionError
from refiner.evaluation.network import EvaluationNetwork
from refiner.models import LeNet

LAYERS = {"body": 1, "middle": 2, "head": 3}
"""The i of τ^i."""


def by_hand(
    model: nn.Module, x: Tensor, y: Tensor, begin: Tensor, network: nn.Module, settings: dict[str, Any]
) -> tuple[Tensor, Tensor]:
    """Equations 2 to 5 for one batch: robust data, and how far UM alone has moved them."""
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
    robust, moved = begin, torch.zeros_like(begin)
    for _ in range(settings["iterations"]):
        robust = robust.detach().requires_grad_()
        pairs = zip(weights, gradient(robust), real, strict=True)
        um = sum(((w * (a - b)) ** 2).sum() for w, a, b in pairs)
        um = um / whole if settings["relative"] else um
        pm = ((robust - x) ** 2).mean() if settings["privacy"] == "mse" else network(robust).mean()
        (down,) = torch.autograd.grad(um, robust)
        (up,) = torch.autograd.grad(pm, robust)
        moved = moved - settings["step"] * down
        robust = robust.detach() - settings["step"] * (down - settings["beta"] * up)
    return robust, moved


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
def test_the_papers_descent_where_utility_has_a_say(
    backwards: nn.Module,
    images: tuple[Tensor, Tensor],
    relative: bool,
    power: float,
    tau: float,
    privacy: str,
    beta: float,
    step: float,
) -> None:
    """UM of raw weights is tiny: the model's are doubled here, and the step is long."""
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
    expected, moved = by_hand(model, x, y, 0.5 * x + 0.5 * drawn, network, settings)
    assert moved.abs().max() > 0.01
    task = Task(model, example=x)
    found, update = Refiner.paper(epsilon=None, network=network, **settings).refine(task, x, y, seed=7)
    torch.testing.assert_close(found[0], expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(update.flat(), NoDefense().protect(task, expected, y).flat())


SIGNED: dict[str, Any] = {"iterations": 1, "granularity": "sample", "beta": 0.0, "warm_start": False}


def signs_of(task: Task, x: Tensor, y: Tensor) -> Tensor:
    """The sign of every victim's one image; refuses uploads that are neither g* nor 2g − g*."""
    real = NoDefense().protect(task, x, y).flat()
    star = Refiner(**SIGNED).protect(task, x, y, seed=0).flat()
    upload = Refiner(random_sign=True, **SIGNED).protect(task, x, y, seed=0).flat()
    kept = (upload - star).norm(dim=1) < 1e-9
    mirrored = (upload - (2 * real - star)).norm(dim=1) < 1e-9
    assert (kept ^ mirrored).all()
    return kept.double() - mirrored.double()


def test_a_random_sign_mirrors_about_half_of_the_uploads_at_the_real_gradient(
    task: Task, images: tuple[Tensor, Tensor]
) -> None:
    x, y = images
    signs = signs_of(task, x, y)
    assert 8 <= (signs < 0).sum() <= 24
    order = torch.randperm(32)
    assert torch.equal(signs_of(task, x[order], y[order]), signs[order])


def test_the_sign_is_not_told_by_the_noise(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images
    bare, _ = Refiner(**{**SIGNED, "iterations": 0}).refine(task, x, y, seed=0)
    noise = (bare - x).flatten(1).sign()
    agree = (noise * signs_of(task, x, y)[:, None]).mean(0)
    assert agree[0].abs() < 0.6 and agree.mean().abs() < 0.1


def test_a_batch_uploads_the_mean_of_its_signed_samples(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images
    signed = Refiner(random_sign=True, **SIGNED)
    alone = signed.protect(task, x, y, seed=0).flat()
    together = signed.protect(task, x[:, 0], y[:, 0], seed=0).flat()
    torch.testing.assert_close(together[0], alone.mean(0))


def test_a_gradient_in_half_precision_is_the_same_gradient() -> None:
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
    half = _halved(task, task.parameters(), y)(x)
    assert half.dtype == torch.float32
    assert 0 < float((half - exact).norm() / exact.norm()) < 0.03


@pytest.mark.parametrize("size", [1, 16])
def test_an_upload_is_held_against_the_real_gradient_in_full_precision(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding must not pass for noise: here TF32 is off by a twentieth, and the upload by nothing."""

    def rounded(*given: Any, **how: Any) -> dict[str, Tensor]:
        share = 0.05 if torch.backends.cudnn.allow_tf32 else 0.0
        return {name: g + share * g.abs().mean() for name, g in gradients(*given, **how).items()}

    monkeypatch.setattr(craft, "gradients", rounded)
    x, y = torch.rand(1, size, 3, 32, 32), torch.arange(size)[None] % 10
    bare = Refiner(start="blend", alpha=0, iterations=0)
    with pytest.raises(ProtectionError, match="all but the real gradient"):
        bare.protect(Task(LeNet(), example=x[0]), x, y)
