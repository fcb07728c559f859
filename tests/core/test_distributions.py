"""Gaussian and Laplace draws: distribution, streams, and independence of the block size."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from refiner.core import distributions
from refiner.core.distributions import gaussian, laplace, stream_blocks
from refiner.core.noise import NoiseSource

Draw = Callable[[NoiseSource, Tensor, int], Tensor]
COUNT = 400_000
both = pytest.mark.parametrize("draw", [gaussian, laplace])


def moment(draw: Draw, order: int) -> int:
    """E xⁿ: of the Gaussian (n − 1)!!, of the Laplace distribution n!, and of both 0 where n is odd."""
    if order % 2:
        return 0
    return math.prod(range(1, order, 2)) if draw is gaussian else math.factorial(order)


@pytest.mark.parametrize(
    ("draw", "reference"), [(gaussian, stats.norm), (laplace, stats.laplace)], ids=["gaussian", "laplace"]
)
def test_draws_have_the_right_distribution(draw: Draw, reference: stats.rv_continuous) -> None:
    draws = draw(NoiseSource(seed=1), torch.arange(10), COUNT // 10).flatten().numpy()
    assert stats.kstest(draws, reference.cdf).pvalue > 1e-3
    # Moments within four standard errors.
    for order in (1, 2, 3, 4):
        error = math.sqrt((moment(draw, 2 * order) - moment(draw, order) ** 2) / COUNT)
        assert abs((draws**order).mean() - moment(draw, order)) < 4 * error


def test_the_two_outputs_of_box_muller_are_independent() -> None:
    first, second = gaussian(NoiseSource(seed=2), torch.tensor([0]), COUNT).view(-1, 2).T
    bound = 4 / math.sqrt(COUNT / 2)
    assert abs(float((first * second).mean())) < bound
    assert abs(float((first**2 * second**2).mean()) - 1) < bound * math.sqrt(8)


class _Constant(NoiseSource):
    """Returns one value instead of uniform noise."""

    def __init__(self, value: float) -> None:
        super().__init__(seed=0)
        self.value = value

    def uniform(self, ids: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((*ids.shape, *shape), self.value, dtype=dtype)


@both
@pytest.mark.parametrize("value", [0.0, 0.5, 1 - 2.0**-24])
def test_extreme_uniform_values_give_finite_draws_far_out(draw: Draw, value: float) -> None:
    draws = draw(_Constant(value), torch.arange(2), 4)
    assert draws.isfinite().all()
    if value == 0:
        largest = math.sqrt(2 * math.log(2.0**49)) if draw is gaussian else math.log(2.0**48)
        assert float(draws.abs().max()) == pytest.approx(largest, rel=1e-12)
    if draw is laplace and value != 0.5:
        assert bool((draws < 0).all()) == (value == 0.0)


@both
@settings(max_examples=10)
@given(count=st.integers(1, 70), more=st.integers(0, 40), seed=st.integers(0, 2**31))
def test_an_id_has_its_own_stream_of_any_length(draw: Draw, count: int, more: int, seed: int) -> None:
    source, ids = NoiseSource(seed=seed), torch.tensor([3, 0, 7])
    draws = draw(source, ids, count)
    assert draws.shape == (3, count)
    assert draws.dtype == torch.float64
    # A longer draw begins with the shorter one; an id's draws don't depend on the other ids; ids differ.
    assert torch.equal(draw(source, ids, count + more)[:, :count], draws)
    assert torch.equal(draw(source, ids[2:], count), draws[2:])
    assert len({tuple(row) for row in draws.tolist()}) == 3


@given(victims=st.integers(1, 6), count=st.integers(0, 50), entries=st.integers(1, 300))
def test_blocks_tile_the_matrix_and_their_size_changes_no_draw(
    victims: int, count: int, entries: int
) -> None:
    def fill(max_entries: int) -> Tensor:
        matrix = torch.zeros(victims, count, dtype=torch.float64)
        visits = torch.zeros(victims, count)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(distributions, "_STREAM_COLUMNS", 16)
            patch.setattr(distributions, "_MAX_ENTRIES", max_entries)
            for block, ids in stream_blocks(matrix):
                visits[block] += 1
                assert matrix[block].numel() <= max(max_entries, 16)
                matrix[block] = gaussian(NoiseSource(seed=0), ids, matrix[block].shape[1])
        assert bool((visits == 1).all())
        return matrix

    whole = fill(10**6)
    assert torch.equal(whole, fill(entries))
    assert whole.unique().numel() == whole.numel()


def test_no_two_parts_victims_or_blocks_share_a_stream() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributions, "_STREAM_COLUMNS", 4)
        ids = [
            int(i)
            for part in (0, 1, 2, 500)
            for _, row_ids in stream_blocks(torch.zeros(5, 30), part)
            for i in row_ids
        ]
    assert len(set(ids)) == len(ids) == 4 * 5 * 8
