"""The solvers of Equation 2 on problems that have another solution: `torch.optim`, or a closed form."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from refiner.defenses.refine.problem import Expansion, Gradient, Problem
from refiner.defenses.refine.solver import SOLVERS, solve
from refiner.defenses.refine.utility import Utility

V, PIXELS, SIZE = 3, 6, 8
STEP, ITERATIONS = 0.05, 7
FREE = {"step": STEP, "reach": 1e9}
SECOND_ORDER = ("conjugate", "secant")


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


START, TARGET, MATRIX = draw(V, 1, PIXELS), draw(V, SIZE, seed=1), draw(SIZE, PIXELS, seed=2)
WEIGHT, SCALE = draw(V, SIZE, seed=3).abs(), torch.tensor([0.3, 1.0, 2.0], dtype=torch.float64)


def straight(data: Tensor) -> Tensor:
    return data.flatten(1) @ MATRIX.T


def curved(data: Tensor) -> Tensor:
    return torch.tanh(straight(data))


def privacy(data: Tensor) -> Tensor:
    return torch.sin(data).flatten(1).mean(1)


def problem(gradient: Gradient, *, beta: float = 0.0, floor: float = 0.0) -> Problem:
    um = Utility(TARGET, WEIGHT, SCALE)
    return Problem(gradient, gradient, lambda: um, privacy, beta, floor, probe=0.05)


def objective(x: Tensor, victim: int, beta: float) -> Tensor:
    difference = curved(x)[0] - TARGET[victim]
    return SCALE[victim] * (WEIGHT[victim] * difference).square().sum() - beta * privacy(x)[0]


CASES: list[tuple[str, Callable[[list[Tensor]], torch.optim.Optimizer]]] = [
    ("descent", lambda p: torch.optim.SGD(p, lr=STEP)),
    ("adam", lambda p: torch.optim.Adam(p, lr=STEP)),
    ("signed", lambda p: torch.optim.Adam(p, lr=STEP)),
]


@pytest.mark.parametrize(("solver", "theirs"), CASES)
@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_first_order_solvers_against_torch_on_each_victim(
    solver: str, theirs: Callable[[list[Tensor]], torch.optim.Optimizer], beta: float
) -> None:
    """Plain descent keeps its step; those of the others shrink in a straight line."""
    robust = solve(problem(curved, beta=beta), START, solver=solver, iterations=ITERATIONS, **FREE)
    for victim in range(V):
        x = START[victim : victim + 1].clone().requires_grad_()
        reference = theirs([x])
        for i in range(ITERATIONS):
            (slope,) = torch.autograd.grad(objective(x, victim, beta), x)
            x.grad = slope.sign() if solver == "signed" else slope
            share = 1.0 if solver == "descent" else 1 - i / ITERATIONS
            reference.param_groups[0]["lr"] = STEP * share
            reference.step()
        torch.testing.assert_close(robust[victim], x.detach()[0], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_iterations_leave_the_start_and_begin_nothing(solver: str) -> None:
    """While a CUDA graph is recorded, what is begun and not waited for would spoil it."""

    def never(data: Tensor) -> Tensor:
        raise AssertionError("asked")

    idle = replace(problem(never, beta=3.0), privacy=never)
    assert torch.equal(solve(idle, START, solver=solver, iterations=0, **FREE), START)


@pytest.mark.parametrize("solver", SECOND_ORDER)
def test_the_first_second_order_step_goes_to_the_minimum_along_the_slope(solver: str) -> None:
    robust = solve(problem(straight), START, solver=solver, iterations=1, **FREE)
    for victim in range(V):
        factor = WEIGHT[victim][:, None] * MATRIX
        away = WEIGHT[victim] * (straight(START)[victim] - TARGET[victim])
        slope = factor.T @ away
        t = slope @ slope / (factor @ slope).square().sum()
        torch.testing.assert_close(robust[victim, 0], START[victim, 0] - t * slope, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("solver", SECOND_ORDER)
def test_second_order_steps_end_at_the_weighted_least_squares_solution(solver: str) -> None:
    """As many as there are pixels are enough, one more for secants; here are two or more to spare."""
    robust = solve(problem(straight), START, solver=solver, iterations=14, **FREE)
    for victim in range(V):
        weight = WEIGHT[victim][:, None]
        best = torch.linalg.lstsq(weight * MATRIX, weight * TARGET[victim][:, None]).solution[:, 0]
        assert (START[victim, 0] - best).abs().max() > 0.1
        torch.testing.assert_close(robust[victim, 0], best, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("solver", SECOND_ORDER)
def test_a_second_order_step_moves_no_pixel_beyond_its_reach(solver: str) -> None:
    robust = solve(problem(straight), START, solver=solver, iterations=1, step=STEP, reach=0.01)
    moved = (robust - START).abs().flatten(1).amax(1)
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01))


def relative(x: Tensor) -> Tensor:
    return (straight(x) - TARGET).norm(dim=1) / TARGET.norm(dim=1)


def test_conjugate_steps_end_on_the_floor() -> None:
    floor = 0.9 * relative(START).min().item()
    bounded = problem(straight, floor=floor)
    robust = solve(bounded, START, solver="conjugate", iterations=60, **FREE)
    torch.testing.assert_close(relative(robust), torch.full((V,), floor, dtype=torch.float64))


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_secant_steps_stay_above_the_floor(share: float) -> None:
    """They end near it: how far a step leads is known only after it."""
    floor = share * relative(START).min().item()
    robust = solve(problem(straight, floor=floor), START, solver="secant", iterations=60, **FREE)
    assert (relative(robust) > 0.9 * floor).all()


@pytest.mark.parametrize("solver", ["descent", *SECOND_ORDER])
@pytest.mark.parametrize("beta", [0.0, 3.0])
def test_below_the_floor_only_privacy_has_a_say(solver: str, beta: float) -> None:
    below = relative(START) < relative(START).median()
    bounded = problem(straight, beta=beta, floor=relative(START).median().item() * (1 - 1e-9))
    robust = solve(bounded, START, solver=solver, iterations=1, **FREE)
    moved = robust - START
    assert below.any() and (moved[~below] != 0).all()
    if beta:
        # The slope of the mean of sin x.
        toward = torch.cos(START[below])
        assert (torch.cosine_similarity(moved[below].flatten(1), toward.flatten(1)) > 1 - 1e-9).all()
    else:
        assert (moved[below] == 0).all()


def test_a_direction_is_tried_in_full_precision() -> None:
    """What is recorded may be rounded: the difference of two points that are near each other may not."""

    def rounded(data: Tensor) -> Tensor:
        return straight(data).bfloat16().double()

    move = draw(*START.shape, seed=4)
    near = Expansion(straight, rounded, START.clone(), probe=0.05)
    tallest = move.abs().flatten(1).amax(1)
    torch.testing.assert_close(near.push(move, tallest), straight(move), rtol=1e-9, atol=1e-9)
    assert (near.value - straight(START)).abs().max() > 1e-4
