"""Victim-batched L-BFGS: victims are independent, values never rise, and end as low as PyTorch's."""

import pytest
import torch
from torch import Tensor

from refiner.core.lbfgs import LBFGS, Evaluate
from refiner.errors import SettingError


def rosenbrock(scale: Tensor) -> Evaluate:
    """Rosenbrock's curved valley with its minimum at 1, steeper for some victims."""

    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            residual = point[:, 1:] - point[:, :-1].square()
            value = (scale[:, None] * residual.square() + (1 - point[:, :-1]).square()).sum(1)
            (gradient,) = torch.autograd.grad(value.sum(), point)
        return value.detach(), gradient

    return evaluate


def run(x: Tensor, evaluate: Evaluate, steps: int, optimizer: LBFGS) -> tuple[Tensor, list[Tensor]]:
    state = optimizer.init(x, evaluate)
    values = [state.value]
    for _ in range(steps):
        x, state = optimizer.step(x, state, evaluate)
        values.append(state.value)
    return x, values


def test_it_finds_the_minimum_and_values_never_rise() -> None:
    scale = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    x = torch.zeros(3, 6, dtype=torch.float64)
    minimum, values = run(x, rosenbrock(scale), 150, LBFGS(history=10))
    torch.testing.assert_close(minimum, torch.ones_like(minimum), rtol=0, atol=1e-5)
    path = torch.stack(values)
    assert bool((path[1:] <= path[:-1]).all())


def test_victims_are_independent() -> None:
    scale = torch.tensor([1.0, 10.0, 100.0], dtype=torch.float64)
    x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    batched, _ = run(x, rosenbrock(scale), 12, LBFGS(history=4))
    for victim in range(3):
        single, _ = run(x[victim : victim + 1], rosenbrock(scale[victim : victim + 1]), 12, LBFGS(history=4))
        torch.testing.assert_close(batched[victim], single[0], rtol=1e-9, atol=1e-9)


def test_it_ends_as_low_as_pytorchs_lbfgs() -> None:
    evaluate = rosenbrock(torch.tensor([100.0], dtype=torch.float64))
    point = torch.zeros(1, 6, dtype=torch.float64, requires_grad=True)
    reference = torch.optim.LBFGS([point], max_iter=80, history_size=10, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        value, gradient = evaluate(point)
        point.grad = gradient
        return value.sum()

    reference.step(closure)
    _, values = run(torch.zeros(1, 6, dtype=torch.float64), evaluate, 80, LBFGS(history=10))
    assert float(values[-1]) <= float(evaluate(point)[0]) + 1e-6


def test_a_victim_with_nan_stays_and_the_others_continue() -> None:
    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = (x - 3).square().sum(1), 2 * (x - 3)
        broken = torch.tensor([False, True])
        return torch.where(broken & (x[:, 0] != 0), torch.nan, value), gradient

    result, _ = run(torch.zeros(2, 3), evaluate, 5, LBFGS())
    torch.testing.assert_close(result[0], torch.full((3,), 3.0))
    assert result[1].tolist() == [0, 0, 0]


@pytest.mark.parametrize(("field", "value"), [("lr", 0), ("lr", "1"), ("history", 0), ("history", 1.5)])
def test_a_wrong_setting_is_an_error(field: str, value: object) -> None:
    with pytest.raises(SettingError, match=field):
        LBFGS(**{field: value})
