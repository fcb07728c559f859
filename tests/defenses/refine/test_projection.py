"""The ε-projection returns the nearest point of the ball."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from refiner.defenses.refine.projection import project

radii = st.floats(0.01, 10)


@given(seed=st.integers(0, 1000), radius=radii)
def test_projection_is_the_nearest_point_of_the_ball(seed: int, radius: float) -> None:
    draws = torch.Generator().manual_seed(seed)
    real, robust, other = (torch.randn(5, 7, dtype=torch.float64, generator=draws) for _ in range(3))
    nearest = project(robust, real, radius)
    assert ((nearest - real).norm(dim=1) <= radius * (1 + 1e-9)).all()
    # No other point of the ball is closer.
    inside = project(other, real, radius)
    assert ((nearest - robust).norm(dim=1) <= (inside - robust).norm(dim=1) + 1e-9).all()
    assert torch.allclose(project(nearest, real, radius), nearest)


def test_points_inside_the_ball_are_unchanged() -> None:
    real, robust = torch.zeros(1, 3), torch.tensor([[0.3, 0.4, 0.1]])
    assert torch.equal(project(robust, real, 1.0), robust)


def test_equal_points_are_unchanged_and_finite() -> None:
    same = torch.ones(2, 3)
    assert torch.equal(project(same, same, 0.5), same)
