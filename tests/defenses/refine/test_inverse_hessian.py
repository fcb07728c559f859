"""The compact form of L-BFGS against BFGS updates of dense matrices."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from refiner.defenses.refine.inverse_hessian import InverseHessian

V, B, PIXELS = 2, 3, 4


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense(scale: float, pairs: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The inverse Hessian after the textbook's BFGS updates, from the oldest pair to the newest."""
    identity = torch.eye(B * PIXELS, dtype=torch.float64)
    matrix = scale * identity
    for step, change in pairs:
        rate = 1 / (step @ change)
        left = identity - rate * torch.outer(step, change)
        matrix = left @ matrix @ left.T + rate * torch.outer(step, step)
    return matrix


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), count=st.integers(0, 8), length=st.integers(1, 5))
def test_it_equals_dense_bfgs_updates_by_the_latest_useful_steps(seed: int, count: int, length: int) -> None:
    """About half of the random steps meet no positive curvature, and every third step has length zero."""
    scale, gradient = torch.tensor([0.5, 2.0], dtype=torch.float64), draw(seed + 1, V, B, PIXELS)
    estimate = InverseHessian(scale, gradient, length)
    steps, changes = draw(seed + 2, count, V, B, PIXELS), draw(seed + 3, count, V, B, PIXELS)
    steps[::3] = changes[::3] = 0
    for step, change in zip(steps, changes, strict=True):
        estimate.add(step, change)
    product = estimate @ gradient
    for victim in range(V):
        flat = [(s[victim].flatten(), c[victim].flatten()) for s, c in zip(steps, changes, strict=True)]
        useful = [(s, c) for s, c in flat if s @ c > 0]
        first = (
            float((useful[-1][0] @ useful[-1][1]) / useful[-1][1].square().sum())
            if useful
            else float(scale[victim])
        )
        latest = [(s, c) for s, c in flat[-length:] if s @ c > 0]
        expected = dense(first, latest) @ gradient[victim].flatten()
        torch.testing.assert_close(product[victim].flatten(), expected, rtol=1e-6, atol=1e-8)
