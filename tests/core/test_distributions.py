"""Draws: their distributions, their streams, and that no size of a piece shows in them."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from refiner.core import distributions
from refiner.core.distributions import gaussian, laplace, pieces
from refiner.core.noise import NoiseSource

Draw = Callable[[NoiseSource, Tensor, int], Tensor]
COUNT = 1_000_000
both = pytest.mark.parametrize("draw", [gaussian, laplace])


def moment(draw: Draw, order: int) -> int:
    """E xⁿ: of the Gaussian (n − 1)!!, of the Laplace distribution n!, and of both 0 where n is odd."""
    if order % 2:
        return 0
    return math.prod(range(1, order, 2)) if draw is gaussian else math.factorial(order)


@pytest.mark.parametrize(
    ("draw", "reference"), [(gaussian, stats.norm), (laplace, stats.laplace)], ids=["gaussian", "laplace"]
)
def test_the_distribution(draw: Draw, reference: stats.rv_continuous) -> None:
    drawn = draw(NoiseSource(seed=1), torch.arange(10), COUNT // 10).flatten().numpy()
    assert stats.kstest(drawn, reference.cdf).pvalue > 1e-3
    # Moments within four standard errors of theirs.
    for order in (1, 2, 3, 4):
        error = math.sqrt((moment(draw, 2 * order) - moment(draw, order) ** 2) / COUNT)
        assert abs((drawn**order).mean() - moment(draw, order)) < 4 * error


def test_the_two_outputs_of_a_pair_are_independent() -> None:
    first, second = gaussian(NoiseSource(seed=2), torch.tensor([0]), COUNT).view(-1, 2).T
    bound = 4 / math.sqrt(COUNT / 2)
    assert abs(float((first * second).mean())) < bound
    assert abs(float((first**2 * second**2).mean()) - 1) < bound * math.sqrt(8)


class _Extreme(NoiseSource):
    """Gives one value where a source gives uniform ones."""

    def __init__(self, value: float) -> None:
        super().__init__(seed=0)
        self.value = value

    def uniform(self, ids: Tensor, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.full((*ids.shape, *shape), self.value, dtype=dtype)


@both
@pytest.mark.parametrize("value", [0.0, 0.5, 1 - 2.0**-24])
def test_the_outermost_bits_are_finite_and_far_out(draw: Draw, value: float) -> None:
    drawn = draw(_Extreme(value), torch.arange(2), 4)
    assert drawn.isfinite().all()
    if value == 0:
        farthest = math.sqrt(2 * math.log(2.0**49)) if draw is gaussian else math.log(2.0**48)
        assert float(drawn.abs().max()) == pytest.approx(farthest, rel=1e-12)
    if draw is laplace and value != 0.5:
        assert bool((drawn < 0).all()) == (value == 0.0)


@both
@settings(max_examples=20)
@given(count=st.integers(1, 70), more=st.integers(0, 40), seed=st.integers(0, 2**31))
def test_streams(draw: Draw, count: int, more: int, seed: int) -> None:
    source, ids = NoiseSource(seed=seed), torch.tensor([3, 0, 7])
    drawn = draw(source, ids, count)
    assert drawn.shape == (3, count)
    assert drawn.dtype == torch.float64
    # A longer draw begins with the shorter one, an id has its draws in any company, another id has others.
    assert torch.equal(draw(source, ids, count + more)[:, :count], drawn)
    assert torch.equal(draw(source, ids[2:], count), drawn[2:])
    assert len({tuple(row) for row in drawn.tolist()}) == 3


@given(victims=st.integers(1, 6), count=st.integers(0, 50), entries=st.integers(1, 300))
def test_pieces_tile_the_matrix_and_their_size_is_free(victims: int, count: int, entries: int) -> None:
    def filled(at_a_time: int) -> Tensor:
        matrix = torch.zeros(victims, count, dtype=torch.float64)
        seen = torch.zeros(victims, count)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(distributions, "_COLUMNS", 16)
            patch.setattr(distributions, "_ENTRIES", at_a_time)
            for place, ids in pieces(matrix):
                seen[place] += 1
                assert matrix[place].numel() <= max(at_a_time, 16)
                matrix[place] = gaussian(NoiseSource(seed=0), ids, matrix[place].shape[1])
        assert bool((seen == 1).all())
        return matrix

    whole = filled(10**6)
    assert torch.equal(whole, filled(entries))
    assert whole.unique().numel() == whole.numel()


def test_no_two_parts_victims_or_pieces_share_a_stream() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributions, "_COLUMNS", 4)
        ids = [
            int(i) for part in (0, 1, 2, 500) for _, some in pieces(torch.zeros(5, 30), part) for i in some
        ]
    assert len(set(ids)) == len(ids) == 4 * 5 * 8
