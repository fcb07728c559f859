"""The solvers of Equation 2 against `torch.optim` and closed forms."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from refiner.defenses.refine.objective import GradientFunction, Linearization, Objective
from refiner.defenses.refine.solver import SOLVERS, solve
from refiner.defenses.refine.utility import Utility

V, PIXELS, SIZE = 3, 6, 8
STEP, ITERATIONS = 0.05, 7
UNBOUNDED = {"step": STEP, "max_step": 1e9}
SECOND_ORDER = ("conjugate", "secant")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


START, TARGET, MATRIX = draw(V, 1, PIXELS), draw(V, SIZE, seed=1), draw(SIZE, PIXELS, seed=2)
WEIGHT, SCALE = draw(V, SIZE, seed=3).abs(), torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)


def linear(data: Tensor) -> Tensor:
    return data.flatten(1) @ MATRIX.T


def curved(data: Tensor) -> Tensor:
    return torch.tanh(linear(data))


def privacy(data: Tensor) -> Tensor:
    return torch.sin(data).flatten(1).mean(1)


def make_objective(gradient: GradientFunction, *, beta: float = 0.0, floor: float = 0.0) -> Objective:
    um = Utility(TARGET, WEIGHT, SCALE)
    return Objective(gradient, gradient, lambda: um, privacy, beta, floor, probe=0.05)


def objective_value(x: Tensor, victim: int, beta: float) -> Tensor:
    difference = curved(x)[0] - TARGET[victim]
    return SCALE[victim] * (WEIGHT[victim] * difference).square().sum() - beta * privacy(x)[0]


CASES: list[tuple[str, Callable[[list[Tensor]], torch.optim.Optimizer]]] = [
    ("descent", lambda p: torch.optim.SGD(p, lr=STEP)),
    ("adam", lambda p: torch.optim.Adam(p, lr=STEP)),
    ("signed", lambda p: torch.optim.Adam(p, lr=STEP)),
]


@pytest.mark.parametrize(("solver", "make_optimizer"), CASES)
@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_first_order_solvers_against_torch_on_each_victim(
    solver: str, make_optimizer: Callable[[list[Tensor]], torch.optim.Optimizer], beta: float
) -> None:
    """Plain descent keeps its step size; those of the others decrease linearly."""
    robust = solve(
        make_objective(curved, beta=beta), START, solver=solver, iterations=ITERATIONS, **UNBOUNDED
    )
    for victim in range(V):
        x = START[victim : victim + 1].clone().requires_grad_()
        reference = make_optimizer([x])
        for i in range(ITERATIONS):
            (gradient,) = torch.autograd.grad(objective_value(x, victim, beta), x)
            x.grad = gradient.sign() if solver == "signed" else gradient
            lr_scale = 1.0 if solver == "descent" else 1 - i / ITERATIONS
            reference.param_groups[0]["lr"] = STEP * lr_scale
            reference.step()
        torch.testing.assert_close(robust[victim], x.detach()[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_zero_iterations_return_the_start_and_compute_nothing(solver: str) -> None:
    """Work on a side stream that is not joined would break a CUDA graph that is being recorded."""

    def fail(data: Tensor) -> Tensor:
        raise AssertionError("must not be called")

    unused = replace(make_objective(fail, beta=3.0), privacy=fail)
    assert torch.equal(solve(unused, START, solver=solver, iterations=0, **UNBOUNDED), START)


@pytest.mark.parametrize("solver", SECOND_ORDER)
def test_the_first_second_order_step_minimises_along_the_gradient(solver: str) -> None:
    robust = solve(make_objective(linear), START, solver=solver, iterations=1, **UNBOUNDED)
    for victim in range(V):
        factor = WEIGHT[victim][:, None] * MATRIX
        residual = WEIGHT[victim] * (linear(START)[victim] - TARGET[victim])
        gradient = factor.T @ residual
        t = gradient @ gradient / (factor @ gradient).square().sum()
        torch.testing.assert_close(robust[victim, 0], START[victim, 0] - t * gradient, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("solver", SECOND_ORDER)
def test_second_order_steps_converge_to_the_weighted_least_squares_solution(solver: str) -> None:
    """As many steps as pixels suffice, one more for secants; here there are at least two extra."""
    robust = solve(make_objective(linear), START, solver=solver, iterations=14, **UNBOUNDED)
    for victim in range(V):
        weight = WEIGHT[victim][:, None]
        best = torch.linalg.lstsq(weight * MATRIX, weight * TARGET[victim][:, None]).solution[:, 0]
        assert (START[victim, 0] - best).abs().max() > 0.1
        torch.testing.assert_close(robust[victim, 0], best, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("solver", SECOND_ORDER)
def test_a_second_order_step_changes_no_pixel_by_more_than_max_step(solver: str) -> None:
    robust = solve(make_objective(linear), START, solver=solver, iterations=1, step=STEP, max_step=0.01)
    largest = (robust - START).abs().flatten(1).amax(1)
    torch.testing.assert_close(largest, torch.full_like(largest, 0.01))


def relative_distance(x: Tensor) -> Tensor:
    return (linear(x) - TARGET).norm(dim=1) / TARGET.norm(dim=1)


def test_conjugate_steps_end_on_the_floor() -> None:
    floor = 0.9 * relative_distance(START).min().item()
    bounded = make_objective(linear, floor=floor)
    robust = solve(bounded, START, solver="conjugate", iterations=60, **UNBOUNDED)
    torch.testing.assert_close(relative_distance(robust), torch.full((V,), floor, dtype=torch.float64))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_secant_steps_end_above_or_near_the_floor(share: float) -> None:
    """How far a secant step leads is known only afterwards."""
    floor = share * relative_distance(START).min().item()
    robust = solve(make_objective(linear, floor=floor), START, solver="secant", iterations=60, **UNBOUNDED)
    assert (relative_distance(robust) > 0.9 * floor).all()


@pytest.mark.parametrize("solver", ["descent", *SECOND_ORDER])
@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_only_the_privacy_metric_acts_below_the_floor(solver: str, beta: float) -> None:
    below = relative_distance(START) < relative_distance(START).median()
    bounded = make_objective(linear, beta=beta, floor=relative_distance(START).median().item() * (1 - 1e-9))
    robust = solve(bounded, START, solver=solver, iterations=1, **UNBOUNDED)
    change = robust - START
    assert below.any() and (change[~below] != 0).all()
    if beta:
        # The gradient of the mean of sin x.
        expected = torch.cos(START[below])
        assert (torch.cosine_similarity(change[below].flatten(1), expected.flatten(1)) > 1 - 1e-9).all()
    else:
        assert (change[below] == 0).all()


def test_a_finite_difference_uses_the_exact_gradient() -> None:
    """The recorded gradient may be rounded; the difference of two close points may not."""

    def rounded(data: Tensor) -> Tensor:
        return linear(data).bfloat16().double()

    direction = draw(*START.shape, seed=4)
    local = Linearization(linear, rounded, START.clone(), probe=0.05)
    max_abs = direction.abs().flatten(1).amax(1)
    torch.testing.assert_close(local.jvp(direction, max_abs), linear(direction), rtol=1e-9, atol=1e-9)
    assert (local.value - linear(START)).abs().max() > 1e-4
