"""UM against Equations 3 and 4, written out element by element."""

import pytest
import torch
from torch import Tensor

from refiner.core import Task, flatten, gradients
from refiner.core.task import Parameters
from refiner.defenses.refine.utility import utility

LAYERS = (("body.weight", "body.bias"), ("middle.weight", "middle.bias"), ("head.weight", "head.bias"))
"""In the order in which they run."""
EXACT = {"rtol": 1e-9, "atol": 0.0}

kinds = pytest.mark.parametrize("relative", [False, True])
powers = pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
decays = pytest.mark.parametrize("tau", [0.5, 1.0])


def written(values: Parameters, real: Parameters, other: Parameters, tau: float, power: float) -> Tensor:
    """UM of one victim: Σ (|g·θ|^power · τ^i · (g* − g))², with i from 1."""
    um = torch.zeros((), dtype=torch.float64)
    for i, layer in enumerate(LAYERS, start=1):
        for name in layer:
            weight = (real[name] * values[name]).abs() ** power * tau**i
            um = um + ((weight * (other[name] - real[name])) ** 2).sum()
    return um


def gradients_of(task: Task, images: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Real gradients of three victims, and those of their images in negative."""
    x, y = images[0][:3], images[1][:3]
    return flatten(gradients(task, x, y)), flatten(gradients(task, 1 - x, y))


@kinds
@powers
@decays
def test_value_slope_and_curvature_are_those_of_the_equation(
    task: Task, images: tuple[Tensor, Tensor], tau: float, power: float, relative: bool
) -> None:
    target, other = gradients_of(task, images)
    um = utility(task, task.parameters(), target, tau=tau, element_power=power, relative=relative)
    values = task.parameters()
    along, across = torch.randn_like(target), torch.randn_like(target)
    for victim in range(len(target)):

        def expected(flat: Tensor, victim: int = victim) -> Tensor:
            real, there = (
                {n: g[0] for n, g in task.apart(t).items()} for t in (target[[victim]], flat[None])
            )
            zero = {name: torch.zeros_like(g) for name, g in real.items()}
            whole = written(values, real, zero, tau, power) if relative else 1
            return written(values, real, there, tau, power) / whole

        at = other[victim].clone().requires_grad_()
        value = expected(at)
        (slope,) = torch.autograd.grad(value, at, create_graph=True)
        (bend,) = torch.autograd.grad(slope @ along[victim], at)
        difference = other - target
        torch.testing.assert_close(um.value(difference)[victim], value.detach(), **EXACT)
        torch.testing.assert_close(um.slope(difference)[victim], slope.detach(), **EXACT)
        torch.testing.assert_close(um.dot(along, across)[victim], bend @ across[victim], **EXACT)


def test_each_victim_is_weighed_by_its_own_model(task: Task, images: tuple[Tensor, Tensor]) -> None:
    target, other = gradients_of(task, images)
    models = torch.randn(3, task.size, dtype=torch.float64)
    settings = {"tau": 0.5, "element_power": 1.0, "relative": False}
    own = utility(task, task.each(models).parameters(), target, **settings).value(other - target)
    for victim in range(3):
        values, real, there = (
            {n: t[0] for n, t in task.apart(rows[[victim]]).items()} for rows in (models, target, other)
        )
        torch.testing.assert_close(own[victim], written(values, real, there, 0.5, 1.0), **EXACT)


@powers
def test_relative_um_of_a_zero_gradient_is_one(
    task: Task, images: tuple[Tensor, Tensor], power: float
) -> None:
    target, _ = gradients_of(task, images)
    um = utility(task, task.parameters(), target, tau=0.5, element_power=power, relative=True)
    torch.testing.assert_close(um.value(-target), torch.ones(3, dtype=torch.float64), **EXACT)


def test_without_a_real_gradient_relative_um_stays_finite(task: Task) -> None:
    nothing = torch.zeros(1, task.size, dtype=torch.float64)
    um = utility(task, task.parameters(), nothing, tau=0.5, element_power=1.0, relative=True)
    assert um.slope(torch.ones_like(nothing)).isfinite().all()
