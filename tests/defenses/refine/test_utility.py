"""UM against Equations 3 and 4, computed element by element."""

import pytest
import torch
from torch import Tensor

from refiner.core import Task, flatten, gradients
from refiner.core.task import Parameters
from refiner.defenses.refine.utility import make_utility

LAYERS = (("body.weight", "body.bias"), ("middle.weight", "middle.bias"), ("head.weight", "head.bias"))
"""In the order in which they run."""
EXACT = {"rtol": 1e-9, "atol": 0.0}

kinds = pytest.mark.parametrize("relative", [False, True])
powers = pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
decays = pytest.mark.parametrize("tau", [0.5, 1.0])


def utility_by_equation(
    values: Parameters, real: Parameters, other: Parameters, tau: float, power: float
) -> Tensor:
    """UM of one victim: Σ (|g·θ|^power · τ^i · (g* − g))², with i from 1."""
    um = torch.zeros((), dtype=torch.float64)
    for i, layer in enumerate(LAYERS, start=1):
        for name in layer:
            weight = (real[name] * values[name]).abs() ** power * tau**i
            um = um + ((weight * (other[name] - real[name])) ** 2).sum()
    return um


def gradients_of(task: Task, images: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Real gradients of three victims, and those of their inverted images."""
    x, y = images[0][:3], images[1][:3]
    return flatten(gradients(task, x, y)), flatten(gradients(task, 1 - x, y))


@kinds
@powers
@decays
def test_value_gradient_and_curvature_agree_with_the_equation(
    task: Task, images: tuple[Tensor, Tensor], tau: float, power: float, relative: bool
) -> None:
    target, other = gradients_of(task, images)
    um = make_utility(task, task.parameters(), target, tau=tau, element_power=power, relative=relative)
    values = task.parameters()
    along, across = torch.randn_like(target), torch.randn_like(target)
    for victim in range(len(target)):

        def expected(flat: Tensor, victim: int = victim) -> Tensor:
            real, there = (
                {n: g[0] for n, g in task.unflatten(t).items()} for t in (target[[victim]], flat[None])
            )
            zero = {name: torch.zeros_like(g) for name, g in real.items()}
            scale = utility_by_equation(values, real, zero, tau, power) if relative else 1
            return utility_by_equation(values, real, there, tau, power) / scale

        at = other[victim].clone().requires_grad_()
        value = expected(at)
        (gradient,) = torch.autograd.grad(value, at, create_graph=True)
        (curvature,) = torch.autograd.grad(gradient @ along[victim], at)
        difference = other - target
        torch.testing.assert_close(um.value(difference)[victim], value.detach(), **EXACT)
        torch.testing.assert_close(um.gradient(difference)[victim], gradient.detach(), **EXACT)
        torch.testing.assert_close(um.dot(along, across)[victim], curvature @ across[victim], **EXACT)


def test_each_victims_weights_come_from_its_own_model(task: Task, images: tuple[Tensor, Tensor]) -> None:
    target, other = gradients_of(task, images)
    models = torch.randn(3, task.size, dtype=torch.float64)
    settings = {"tau": 0.5, "element_power": 1.0, "relative": False}
    values_per_model = make_utility(task, task.with_models(models).parameters(), target, **settings).value(
        other - target
    )
    for victim in range(3):
        values, real, there = (
            {n: t[0] for n, t in task.unflatten(rows[[victim]]).items()} for rows in (models, target, other)
        )
        torch.testing.assert_close(
            values_per_model[victim], utility_by_equation(values, real, there, 0.5, 1.0), **EXACT
        )


@powers
def test_relative_um_of_a_zero_gradient_is_one(
    task: Task, images: tuple[Tensor, Tensor], power: float
) -> None:
    target, _ = gradients_of(task, images)
    um = make_utility(task, task.parameters(), target, tau=0.5, element_power=power, relative=True)
    torch.testing.assert_close(um.value(-target), torch.ones(3, dtype=torch.float64), **EXACT)


def test_relative_um_of_a_zero_target_is_finite(task: Task) -> None:
    zero = torch.zeros(1, task.size, dtype=torch.float64)
    um = make_utility(task, task.parameters(), zero, tau=0.5, element_power=1.0, relative=True)
    assert um.gradient(torch.ones_like(zero)).isfinite().all()
