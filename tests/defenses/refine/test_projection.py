"""The ring around the real gradient: at most ε, at least the floor."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from refiner.defenses.refine.projection import project, repel

radii = st.floats(0.01, 10)


@given(seed=st.integers(0, 1000), radius=radii)
def test_projection_is_the_nearest_point_of_the_ball(seed: int, radius: float) -> None:
    draws = torch.Generator().manual_seed(seed)
    real, robust, other = (torch.randn(5, 7, dtype=torch.float64, generator=draws) for _ in range(3))
    nearest = project(robust, real, radius)
    assert ((nearest - real).norm(dim=1) <= radius * (1 + 1e-9)).all()
    # No other point of the ball is nearer.
    inside = project(other, real, radius)
    assert ((nearest - robust).norm(dim=1) <= (inside - robust).norm(dim=1) + 1e-9).all()
    assert torch.allclose(project(nearest, real, radius), nearest)


@given(seed=st.integers(0, 1000), radius=radii)
def test_repelled_points_are_no_nearer_and_keep_their_direction(seed: int, radius: float) -> None:
    draws = torch.Generator().manual_seed(seed)
    real, robust = (torch.randn(5, 7, dtype=torch.float64, generator=draws) for _ in range(2))
    away = repel(robust, real, torch.full((5,), radius, dtype=torch.float64))
    assert ((away - real).norm(dim=1) >= radius * (1 - 1e-9)).all()
    assert torch.allclose(torch.cosine_similarity(away - real, robust - real), torch.ones(5).double())


def test_inside_the_ring_nothing_changes_to_the_last_bit() -> None:
    real, robust = torch.zeros(1, 3), torch.tensor([[0.3, 0.4, 0.1]])
    assert torch.equal(project(robust, real, 1.0), robust)
    assert torch.equal(repel(robust, real, torch.tensor([0.1])), robust)


def test_equal_points_stay_and_stay_finite() -> None:
    same = torch.ones(2, 3)
    assert torch.equal(project(same, same, 0.5), same)
    assert torch.equal(repel(same, same, torch.ones(2)), same)
