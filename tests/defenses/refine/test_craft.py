"""Equation 2 against a plain loop; what is uploaded with and without a search, and how far a search goes."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from refiner.core import NoiseSource, Task, flatten, gradients
from refiner.defenses import NoDefense, Refiner
from refiner.defenses.refine import craft
from refiner.defenses.refine.craft import _bfloat16_gradient
from refiner.defenses.refine.initialization import NOISE_STEPS
from refiner.evaluation.network import EvaluationNetwork
from refiner.shaped_noise import NaturalNoise

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


def spy_on_gradients(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The data of every gradient that a search computes."""
    data: list[Tensor] = []

    def recording(task: Task, x: Tensor, *arguments: Any, **options: Any) -> dict[str, Tensor]:
        data.append(x.detach().clone())
        return gradients(task, x, *arguments, **options)

    monkeypatch.setattr(craft, "gradients", recording)
    return data


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("settings", "batch"), [({"search": "never"}, 32), ({}, 15), ({"min_search_batch": 33}, 32)]
)
def test_without_a_search_no_gradient_of_the_real_data_is_computed(
    task: Task,
    images: tuple[Tensor, Tensor],
    settings: dict[str, Any],
    batch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is uploaded is a function of the noisy images and the labels alone."""
    x, y = images[0][:batch, 0], images[1][:batch, 0]
    data = spy_on_gradients(monkeypatch)
    protection = Refiner(**settings).protection(task, x, y)
    assert protection.robust is not None
    assert len(data) == 1 and torch.equal(data[0], protection.robust)
    assert (data[0][0] - x).abs().mean() > 0.3
    upload = NoDefense().protect(task, protection.robust[0], y).flat()
    assert torch.equal(protection.update.flat(), upload)


def test_batches_of_the_minimum_size_are_searched(task: Task, images: tuple[Tensor, Tensor]) -> None:
    x, y = images[0][:16, 0], images[1][:16, 0]
    real = NoDefense().protect(task, x, y).flat()

    def distance(**settings: Any) -> float:
        return float((Refiner(**settings).protect(task, x, y, seed=0).flat() - real).norm() / real.norm())

    assert distance() < 0.9 * distance(search="never")
    assert distance() < 0.9 * distance(radius=0.2)
    assert distance(min_search_batch=17) == distance(search="never")


@pytest.mark.parametrize(("radius", "white"), [(0.05, 0.0), (0.5, 0.0), (0.05, 0.5)])
def test_no_frequency_of_an_image_changes_by_more_than_the_radius(
    task: Task, images: tuple[Tensor, Tensor], radius: float, white: float
) -> None:
    x, y = images[0][:8, 0], images[1][:8, 0]
    searching = Refiner(search="always", radius=radius, white=white, iterations=30)
    start, robust = (
        defense.protection(task, x, y, seed=0).robust
        for defense in (Refiner(search="never", white=white), searching)
    )
    assert start is not None and robust is not None
    noise = copy.deepcopy(NaturalNoise.bundled().with_white(white)).double()
    largest = float(noise.whiten(robust - start).abs().max())
    assert 0.9 * radius < largest <= radius * (1 + 1e-6)


def test_statistics_from_a_file_shape_the_noise(
    task: Task, images: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    statistics = NaturalNoise.bundled()
    quiet = NaturalNoise(0.01 * statistics.covariance, statistics.mean)
    quiet.save(tmp_path / "quiet.safetensors")
    x, y = images
    loud, soft = (
        Refiner(search="never", white=0.0, statistics=file).protection(task, x, y, seed=0).robust
        for file in (None, str(tmp_path / "quiet.safetensors"))
    )
    assert loud is not None and soft is not None
    torch.testing.assert_close(soft - x, 0.1 * (loud - x), rtol=1e-4, atol=1 / NOISE_STEPS)


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
