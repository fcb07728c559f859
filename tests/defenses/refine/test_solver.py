"""The solvers of Equation 2 against `torch.optim` and closed forms."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from refiner.defenses.refine.objective import GradientFunction, Linearization, Objective
from refiner.defenses.refine.solver import SOLVERS, lbfgs, solve
from refiner.defenses.refine.utility import Utility

V, PIXELS, SIZE = 3, 6, 8
STEP, ITERATIONS = 0.05, 7


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


def make_objective(gradient: GradientFunction, *, beta: float = 0.0) -> Objective:
    um = Utility(TARGET, WEIGHT, SCALE)
    return Objective(gradient, gradient, lambda: um, privacy, beta, probe=0.05)


def objective_value(x: Tensor, victim: int, beta: float) -> Tensor:
    difference = curved(x)[0] - TARGET[victim]
    return SCALE[victim] * (WEIGHT[victim] * difference).square().sum() - beta * privacy(x)[0]


@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_an_evaluation_equals_autograd_on_each_victim(beta: float) -> None:
    value, gradient = make_objective(curved, beta=beta).evaluate(START)
    for victim in range(V):
        x = START[victim : victim + 1].clone().requires_grad_()
        expected = objective_value(x, victim, beta)
        torch.testing.assert_close(value[victim], expected.detach())
        torch.testing.assert_close(gradient[victim], torch.autograd.grad(expected, x)[0][0])


@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_descent_equals_torch_on_each_victim(beta: float) -> None:
    objective = make_objective(curved, beta=beta)
    robust = solve(objective, START, solver="descent", iterations=ITERATIONS, step=STEP)
    for victim in range(V):
        x = START[victim : victim + 1].clone().requires_grad_()
        reference = torch.optim.SGD([x], lr=STEP)
        for _ in range(ITERATIONS):
            (x.grad,) = torch.autograd.grad(objective_value(x, victim, beta), x)
            reference.step()
        torch.testing.assert_close(robust[victim], x.detach()[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_zero_iterations_return_the_start_and_compute_nothing(solver: str) -> None:
    """Work on a side stream that is not joined would break a CUDA graph that is being recorded."""

    def fail(data: Tensor) -> Tensor:
        raise AssertionError("must not be called")

    unused = replace(make_objective(fail, beta=3.0), privacy=fail)
    assert torch.equal(solve(unused, START, solver=solver, iterations=0, step=STEP), START)


def test_the_first_step_of_lbfgs_minimises_along_the_gradient() -> None:
    robust = lbfgs(make_objective(linear), START, evaluations=2)
    for victim in range(V):
        factor = WEIGHT[victim][:, None] * MATRIX
        residual = WEIGHT[victim] * (linear(START)[victim] - TARGET[victim])
        gradient = factor.T @ residual
        t = gradient @ gradient / (factor @ gradient).square().sum()
        torch.testing.assert_close(robust[victim, 0], START[victim, 0] - t * gradient, rtol=1e-6, atol=1e-6)


def test_lbfgs_converges_to_the_weighted_least_squares_solution() -> None:
    robust = lbfgs(make_objective(linear), START, evaluations=40)
    for victim in range(V):
        weight = WEIGHT[victim][:, None]
        best = torch.linalg.lstsq(weight * MATRIX, weight * TARGET[victim][:, None]).solution[:, 0]
        assert (START[victim, 0] - best).abs().max() > 0.1
        torch.testing.assert_close(robust[victim, 0], best, rtol=1e-5, atol=1e-5)


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 100), beta=st.sampled_from([0.0, 1.0]))
def test_more_evaluations_are_never_worse(seed: int, scale: float, beta: float) -> None:
    objective, start = make_objective(curved, beta=beta), scale * draw(V, 1, PIXELS, seed=seed)
    values = torch.stack([objective.evaluate(lbfgs(objective, start, n))[0] for n in (1, 2, 3, 6, 12)])
    assert (values.diff(dim=0) <= 1e-12 * values[:-1].abs()).all()


def test_lbfgs_evaluates_exactly_as_often_as_asked_whatever_the_data() -> None:
    """Time and a recorded graph must not depend on data; here a third of the victims meets NaN at once."""
    calls = 0

    def counted(data: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return torch.where(torch.arange(V)[:, None] == 0, torch.nan, curved(data))

    objective = make_objective(counted)
    robust = lbfgs(objective, START, evaluations=9)
    assert calls == 9 + 1  # one more for the first step size
    assert torch.equal(robust[0], START[0]) and (robust[1:] != START[1:]).any()


def test_victims_do_not_affect_each_other() -> None:
    together = lbfgs(make_objective(curved), START, evaluations=6)
    for victim in range(V):
        rows = slice(victim, victim + 1)
        um = Utility(TARGET[rows], WEIGHT[rows], SCALE[rows])
        alone = lbfgs(Objective(curved, curved, lambda um=um: um, privacy, 0.0, 0.05), START[rows], 6)
        torch.testing.assert_close(together[rows], alone)


def test_a_finite_difference_uses_the_exact_gradient() -> None:
    """The recorded gradient may be rounded; the difference of two close points may not."""

    def rounded(data: Tensor) -> Tensor:
        return linear(data).bfloat16().double()

    direction = draw(*START.shape, seed=4)
    local = Linearization(linear, rounded, START.clone(), probe=0.05)
    max_abs = direction.abs().flatten(1).amax(1)
    torch.testing.assert_close(local.jvp(direction, max_abs), linear(direction), rtol=1e-9, atol=1e-9)
    assert (local.value - linear(START)).abs().max() > 1e-4
